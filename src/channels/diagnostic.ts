/** Smaller cuts off the provider's link to its explanation; larger lets a remote system fill our tables. */
export const diagnosticCharsMax = 500;

/**
 * Anything that could change how a line of a log or a page reads: control characters, and the characters that
 * turn the direction of writing or break lines in Unicode.
 */
const unsafeCharacters = /[\p{Cc}\p{Cs}\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]+/gu;

const plainText = /^[\x20-\x7e]*$/;

/** Untrusted text, made fit to be stored, logged and shown: one line, no control characters, at most 500 characters. */
export function sanitiseDiagnostic(text: string): string {
  if (text.length <= diagnosticCharsMax && plainText.test(text)) return text.trim();
  // Cut before replacing, so that the work is bounded, and once more after, since the cut may have left half a pair.
  const capped = text.slice(0, 4 * diagnosticCharsMax);
  return capped
    .replace(unsafeCharacters, ' ')
    .trim()
    .slice(0, diagnosticCharsMax)
    .replace(/\p{Cs}$/u, '')
    .trim();
}
