/**
 * When a webhook that failed is tried again: by the schedule that Standard Webhooks 1.0 recommends, over three days in all.
 */

const second = 1_000;
const minute = 60 * second;
const hour = 60 * minute;

/** After the first failure, the second, and so on. */
const delaysMs = [
  ...[5 * second, 5 * minute, 30 * minute, 2 * hour, 5 * hour],
  ...[10 * hour, 14 * hour, 20 * hour, 24 * hour],
];

/** What failed at one moment, as when a receiver was started anew, is not tried again at one moment. */
const spread = 0.2;

/** A receiver that asks for more has made a mistake, which would stop its webhooks for good. */
const retryAfterMsMax = 24 * hour;

/** How many attempts a webhook has at most. */
export const attemptsMax = delaysMs.length + 1;

export type FailedAttempt = {
  /** How many failed in all, this one counted. */
  failures: number;
  /** What the receiver asks for, or null. */
  retryAfterMs: number | null;
  /** From 0 up to 1. */
  random: number;
};

/**
 * In how many milliseconds the next attempt is due; null after the last one. A receiver that asks for more time gets it, up
 * to a day. It gets no attempts sooner than those of the schedule: one that says `retry-after: 1` to everything would use
 * up all of them within seconds.
 */
export function nextAttemptInMs({ failures, retryAfterMs, random }: FailedAttempt): number | null {
  const delayMs = delaysMs[failures - 1];
  if (delayMs === undefined) return null;
  const scheduledMs = delayMs * (1 - spread + 2 * spread * random);
  if (retryAfterMs === null) return Math.round(scheduledMs);
  // Never sooner than asked for.
  const askedMs = Math.min(retryAfterMs, retryAfterMsMax) * (1 + spread * random);
  return Math.round(Math.max(scheduledMs, askedMs));
}

/** Statuses by which a receiver, or the proxy before it, says that it gets more at once than it can take. */
const overloaded = [429, 502, 504];

/** Whether an endpoint that answered so gets half as many requests at once from now on. */
export function asksForLess(status: number | null): boolean {
  return status !== null && overloaded.includes(status);
}
