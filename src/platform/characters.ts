/**
 * Lengths as the API counts them: in code points. An emoji is one code point, and two code units in JavaScript.
 * Schemas count the same way.
 */

/** Whether a text has more characters than that; of a very long one it looks at no more than the length. */
export function isLongerThan(text: string, charactersMax: number): boolean {
  if (text.length <= charactersMax) return false;
  if (text.length > codeUnitsMax(charactersMax)) return true;
  return countCharacters(text) > charactersMax;
}

/** The most code units that this many characters can have. */
export function codeUnitsMax(charactersMax: number): number {
  return 2 * charactersMax;
}

function countCharacters(text: string): number {
  let count = 0;
  // Ends with the text: a code point has at least one code unit.
  for (let at = 0; at < text.length; at += (text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1) count += 1;
  return count;
}

/**
 * The one spelling of a text that looks the same however it was typed: composed (NFC, UAX #15), as `é` may also be an e and
 * an accent. What stands before the first combining character has no other spelling.
 */
export function toComposed(text: string): string {
  return /[\u0300-\uffff]/.test(text) ? text.normalize('NFC') : text;
}

/** By which texts are searched and names are unique: in lower case, which may be composed once more. */
export function toSearchKey(text: string): string {
  return toComposed(toComposed(text).toLowerCase());
}
