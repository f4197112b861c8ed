import { isLongerThan } from '../../platform/characters.ts';
import { type EmailAddress, encodedWordPattern, parseAddress } from './address.ts';
import { breakPattern } from './headers.ts';

/** An address as people write it, with the name of whose it is, or null where it is bare. */
export type NamedAddress = { name: string | null; email: EmailAddress };

/** As the field for the name of a sender: longer ones are no names. */
export const nameLengthMax = 256;

/** Of a name each character of which is escaped and takes two units of UTF-16, and of the longest address. */
const textLengthMax = 1_300;

/** RFC 5322 §3.2.5: a word of a name is an atom, in which dots are let through (§4.1), or a quoted string. */
const wordPattern = /(?:"((?:[^"\\]|\\.)*)"|([^ "(),:;<>@[\\\]]+))(?: +|$)/uy;

/**
 * Reads an address that a request gives: bare, or `Name <address>` (RFC 5322 §3.4, name-addr), where the name is words or
 * quoted strings and the address is what `parseAddress` takes. Null for everything else that the standard knows, as it is
 * for addresses: lists, groups, routes, comments and encoded words.
 */
export function parseNamedAddress(text: string): NamedAddress | null {
  if (!text.endsWith('>')) {
    const email = parseAddress(text);
    return email && { name: null, email };
  }
  if (text.length > textLengthMax || breakPattern.test(text)) return null;
  const bracket = text.lastIndexOf('<');
  const email = parseAddress(text.slice(bracket + 1, -1));
  const name = bracket === -1 ? null : readName(text.slice(0, bracket));
  return email === null || name === null ? null : { name: name === '' ? null : name, email };
}

/** The address alone of what `parseNamedAddress` reads: for whoever keeps no name with it. */
export function readAddress(text: string): EmailAddress | null {
  return parseNamedAddress(text)?.email ?? null;
}

/** Empty where there is none; null where it is not one that every reader understands alike. */
function readName(text: string): string | null {
  const words: string[] = [];
  const phrase = text.trimStart();
  for (wordPattern.lastIndex = 0; wordPattern.lastIndex < phrase.length;) {
    const [, quoted, atom] = wordPattern.exec(phrase) ?? [];
    const word = atom ?? quoted?.replace(/\\(.)/gu, '$1');
    // Ends here at the latest, since every match moves on.
    if (word === undefined) return null;
    words.push(word);
  }
  const name = words.join(' ').trim();
  // First how long it is: the pattern takes the square of that.
  return isLongerThan(name, nameLengthMax) || encodedWordPattern.test(name) ? null : name;
}

/** What `parseNamedAddress` reads as the same. */
export function writeNamedAddress({ name, email: { address } }: NamedAddress): string {
  return name === null ? address : `"${name.replace(/["\\]/g, '\\$&')}" <${address}>`;
}
