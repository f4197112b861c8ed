import { parseRetryAfter } from '../platform/retry-after.ts';

/** Sooner would hardly let anything recover; later, and a mistake on the far side stops a message for good. */
const retryAfterMsMin = 1_000;
const retryAfterMsMax = 3_600_000;

/** Where the far side asks to come back later in a way that cannot be read. */
const retryAfterMsUnread = 60_000;

/**
 * The pause that a header `Retry-After` asks for (RFC 9110 §10.2.3), between a second and an hour; none if it is
 * absent. Services write seconds; the form with a date is taken for a minute.
 */
export function waitOf(retryAfter: string | null | undefined): { retryAfterMs?: number } {
  if (retryAfter === null || retryAfter === undefined) return {};
  const waitMs = parseRetryAfter(retryAfter, null);
  if (waitMs === null) return { retryAfterMs: retryAfterMsUnread };
  return { retryAfterMs: Math.min(Math.max(waitMs, retryAfterMsMin), retryAfterMsMax) };
}
