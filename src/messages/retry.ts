/**
 * When a deferred recipient is tried again. The first pauses are short, because greylisting and brief overloads are
 * the common case; the later ones long, because a server that was away for hours gains nothing from being asked.
 */
const pausesMs = [1, 5, 15, 30, 60, 120, 240, 360].map((minutes) => minutes * 60_000);

/** A remote side may ask for a pause, within reason. */
const retryAfterMinMs = 1_000;
const retryAfterMaxMs = 60 * 60 * 1_000;

/** Without it, everything that was deferred together would come back together. */
const jitter = 0.2;

/** The pause before the next attempt; `attempts` counts those that were made, `random` is from 0 to 1. */
export function nextPauseMs(attempts: number, retryAfterMs: number | undefined, random: number): number {
  if (retryAfterMs !== undefined) {
    return Math.min(Math.max(retryAfterMs, retryAfterMinMs), retryAfterMaxMs);
  }
  const pauseMs = pausesMs[Math.min(attempts, pausesMs.length) - 1] ?? 60_000;
  return Math.round(pauseMs * (1 - jitter + 2 * jitter * random));
}
