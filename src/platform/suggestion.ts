import { closestMatch } from 'leven';

/** `fromName`, `From-Name` and `from_name` are the same word in different spellings. */
function toPlain(name: string): string {
  return name.toLowerCase().replaceAll(/[-_ ]/g, '');
}

function sortLetters(name: string): string {
  return [...name].sort().join('');
}

/** A word with more wrong letters than this is another word, and a suggestion would mislead. */
const mistakesMax = 2;
/** Of this many letters one may be wrong: among three-letter words nearly everything is near. */
const lettersForMistake = 3;

/**
 * The known name that was probably meant, or null if none is near. `given` is untrusted and may be of any length: a
 * name that is not about as long as a known one costs no comparison.
 */
export function suggestName(given: string, known: readonly string[]): string | null {
  const longest = Math.max(0, ...known.map((name) => name.length));
  if (given.length > 2 * longest + mistakesMax) return null;
  const plain = toPlain(given);
  const byPlain = new Map(known.map((name) => [toPlain(name), name]));
  const letters = sortLetters(plain);
  const maxDistance = Math.min(mistakesMax, Math.floor(plain.length / lettersForMistake));
  // The same letters in another order are a slip of the fingers, which a distance counts as two: "form" and "from".
  const nearest =
    closestMatch(plain, [...byPlain.keys()], { maxDistance }) ??
    [...byPlain.keys()].find((name) => name.length === plain.length && sortLetters(name) === letters);
  return (nearest === undefined ? undefined : byPlain.get(nearest)) ?? null;
}

/** ` (did you mean from_name?)`, to stand after what is wrong; empty if nothing is near. */
export function didYouMean(given: string, known: readonly string[]): string {
  const suggestion = suggestName(given, known);
  return suggestion === null ? '' : ` (did you mean ${suggestion}?)`;
}
