/** The three ways in which HTTP writes a time (RFC 9110 §5.6.7), of which the last names no zone and means GMT. */
const datePatterns = [
  /^[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT$/,
  /^[A-Z][a-z]{5,8}, \d{2}-[A-Z][a-z]{2}-\d{2} \d{2}:\d{2}:\d{2} GMT$/,
  /^[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2} \d{4}$/,
];

/**
 * The pause that a header `Retry-After` asks for (RFC 9110 §10.2.3) in milliseconds, without a limit; 0 for a time that is
 * over. Null where it cannot be read, and for a date if `nowMs` is null: whoever asks knows no present time.
 */
export function parseRetryAfter(text: string, nowMs: number | null): number | null {
  if (/^\d{1,9}$/.test(text)) return 1_000 * Number(text);
  if (nowMs === null || !datePatterns.some((pattern) => pattern.test(text))) return null;
  const atMs = dateOfHttp(text);
  return Number.isNaN(atMs) ? null : Math.max(0, atMs - nowMs);
}

function dateOfHttp(text: string): number {
  // eslint-disable-next-line no-restricted-globals -- parses, and does not read the present time
  return Date.parse(text.endsWith('GMT') ? text : `${text} GMT`);
}
