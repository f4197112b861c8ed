import { sanitiseDiagnostic } from '../../../diagnostic.ts';
import type { RemoteReply } from '../../../outcome.ts';
import type { PduAddress } from './pdu.ts';

/** What comes over the wire, made fit to be stored and shown. */

/** Larger than any text that people write (the longest chain of segments has 255); smaller would cut letters short. */
const textCharsMax = 4_000;

/** Control characters except line ends and tabs, and halves of surrogate pairs. */
const unsafeInText = /(?![\n\t])[\p{Cc}\p{Cs}]+/gu;

/** An identifier or a few words: one line, no control characters, at most 500 characters. */
export function cleanWords(words: string): string {
  return sanitiseDiagnostic(words);
}

/** A text that a person wrote: its line ends stay. */
export function cleanText(text: string): string {
  return text.slice(0, textCharsMax).replace(/\r\n?/g, '\n').replace(unsafeInText, '');
}

/** §5.2.5 */
const tons = { unknown: 0, international: 1, national: 2 } as const;

/** Where the 0 before a national number is a part of it: Italy and San Marino, Congo, Benin, and Côte d'Ivoire. */
const countriesWithZero = ['39', '378', '242', '229', '225'];

/**
 * What is dialled before national numbers instead of a 0, and is no part of them: in Russia and Kazakhstan, Hungary,
 * Belarus, and Turkmenistan. Numbers may begin with an 8 themselves: then their length decides.
 */
const otherPrefixes: ReadonlyMap<string, RegExp> = new Map([
  ['7', /^8(?=\d{10}$)/],
  ['36', /^06/],
  ['375', /^80(?=\d{9}$)/],
  ['993', /^8(?=\d{8}$)/],
]);

/**
 * A number in E.164 with its plus if it looks international, or national to the country with that dialling code, else
 * (short codes, national numbers of unknown countries, names) as it is. Many providers mark international numbers as
 * of unknown type; national ones begin with 0, are short, or are marked.
 */
export function readNumber({ ton, address }: PduAddress, country: string | null): string {
  const cleaned = cleanWords(address);
  const [, prefix, digits] = /^(\+|00)?(\d+)$/.exec(cleaned) ?? [];
  if (digits === undefined) return cleaned;
  const isMarked = prefix !== undefined || ton === tons.international;
  const national = isMarked || country === null ? null : nationalDigitsOf(ton, digits, country);
  if (national !== null) return `+${country}${national}`;
  const isPlausible = /^[1-9]\d{6,14}$/.test(digits);
  if (isPlausible && (isMarked || (ton === tons.unknown && digits.length >= 10))) return `+${digits}`;
  return cleaned;
}

/** The name of one of our senders: digits without a plus, or letters. */
export function readSenderName(address: PduAddress, country: string | null): string {
  return readNumber(address, country).replace(/^\+/, '');
}

/** What follows the country's code in E.164, or null if this is no national number: short codes have six digits. */
function nationalDigitsOf(ton: number, digits: string, country: string): string | null {
  if (ton !== tons.unknown && ton !== tons.national) return null;
  // All numbers of North America have ten digits, and a 1 where others have a 0.
  if (country === '1') return /^1?([2-9]\d{9})$/.exec(digits)?.[1] ?? null;
  const prefix = otherPrefixes.get(country) ?? /^0/;
  const looksNational =
    ton === tons.national || digits.startsWith('0') || digits.length <= 10 || prefix.test(digits);
  if (!looksNational) return null;
  const hasZero = countriesWithZero.includes(country);
  const national = hasZero ? digits : digits.replace(prefix, '');
  const isPlausible = (hasZero ? /^\d{7,12}$/ : /^[1-9]\d{6,11}$/).test(national);
  return isPlausible ? national : null;
}

/** What the far side or we say about a hand-off; `code` is a command_status. */
export function words(code: number | null, diagnostic: string, remote: string): RemoteReply {
  return { code, enhancedCode: null, diagnostic: cleanWords(diagnostic), remote };
}
