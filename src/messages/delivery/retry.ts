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

/**
 * Nothing is put off for longer. What falls due later than that was put off under a clock that was ahead, and is brought
 * forward (bring-forward.ts): with a smaller bound a pause would be cut short, with a larger one more of it waits.
 */
export const pauseMsMax = 24 * 60 * 60_000;

/** When something is due that is put off for `pauseMs`, in milliseconds since 1970 as `atMs`. */
export function dueAfterMs(atMs: number, pauseMs: number): number {
  return atMs + Math.min(pauseMs, pauseMsMax);
}

/** The pause before the next attempt; `attempts` counts those that were made, `random` is from 0 to 1. */
export function nextPauseMs(attempts: number, retryAfterMs: number | undefined, random: number): number {
  if (retryAfterMs !== undefined) {
    return Math.min(Math.max(retryAfterMs, retryAfterMinMs), retryAfterMaxMs);
  }
  const pauseMs = pausesMs[Math.min(attempts, pausesMs.length) - 1] ?? 60_000;
  return Math.round(pauseMs * (1 - jitter + 2 * jitter * random));
}
