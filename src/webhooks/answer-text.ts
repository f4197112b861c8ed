/** How much of an answer is kept: enough for what a receiver says of an error. More would fill our tables. */
export const answerBytesMax = 1_024;

/** What would change how a line reads that shows it: control characters but line ends and tabs, and directions. */
const unsafeCharacters = /[^\P{Cc}\n\t]|[\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]/gu;

/** One for each run of octets that are no UTF-8: each takes three octets itself. */
const unreadCharacters = /\ufffd+/g;

/**
 * The beginning of an answer, as text that can be stored and shown: at most 1,024 octets, whatever it was. What is
 * compressed is not unpacked, since a kilobyte may hold megabytes, and is named instead.
 */
export function readAnswerText(bytes: Buffer, contentEncoding: string | null): string {
  if (contentEncoding !== null && contentEncoding.toLowerCase() !== 'identity')
    return bytes.length === 0 ? '' : '(compressed, and not unpacked)';
  const isCut = bytes.length > answerBytesMax;
  // A character that is cut in half is left out, and a mark at the beginning too.
  const text = new TextDecoder().decode(bytes.subarray(0, answerBytesMax), { stream: isCut });
  const safe = text
    .replaceAll('\r\n', '\n')
    .replace(unsafeCharacters, ' ')
    .replace(unreadCharacters, '\ufffd');
  const encoded = Buffer.from(safe);
  return encoded.length <= answerBytesMax
    ? safe
    : new TextDecoder().decode(encoded.subarray(0, answerBytesMax), { stream: true });
}
