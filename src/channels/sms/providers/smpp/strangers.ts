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

/** A text that somebody wrote: its line ends stay. */
export function cleanText(text: string): string {
  return text.slice(0, textCharsMax).replace(/\r\n?/g, '\n').replace(unsafeInText, '');
}

/**
 * A number in E.164 with its plus if it looks international, else (short codes, national numbers, names) as it is.
 * Many providers mark international numbers as of unknown type; national ones begin with 0 or are marked.
 */
export function readNumber({ ton, address }: PduAddress): string {
  const cleaned = cleanWords(address);
  const [, prefix, digits] = /^(\+|00)?(\d+)$/.exec(cleaned) ?? [];
  if (digits === undefined) return cleaned;
  const isMarked = prefix !== undefined || ton === 1;
  const isPlausible = /^[1-9]\d{6,14}$/.test(digits);
  if (isPlausible && (isMarked || (ton === 0 && digits.length >= 10))) return `+${digits}`;
  return cleaned;
}

/** The name of one of our senders: digits without a plus, or letters. */
export function readSenderName(address: PduAddress): string {
  return readNumber(address).replace(/^\+/, '');
}

/** What the far side or we say about a hand-off; `code` is a command_status. */
export function words(code: number | null, diagnostic: string, remote: string): RemoteReply {
  return { code, enhancedCode: null, diagnostic: cleanWords(diagnostic), remote };
}
