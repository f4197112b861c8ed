/**
 * When a deferred recipient is tried again. The first pauses are short, because greylisting and brief overloads are the
 * common case; the later ones are long, because trying a server that has been down for hours gains nothing.
 */
const pausesMs = [1, 5, 15, 30, 60, 120, 240, 360].map((minutes) => minutes * 60_000);

/** A remote side may ask for a pause, within these limits. */
const retryAfterMinMs = 1_000;
const retryAfterMaxMs = 60 * 60 * 1_000;

/** Without it, jobs that were deferred together would all be due together. */
const jitter = 0.2;

/**
 * No job is deferred for longer. A job that is due later than that was deferred while the clock was ahead, and is
 * brought forward (bring-forward.ts). A smaller bound would cut pauses short; with a larger one, more such jobs would
 * wait.
 */
export const pauseMsMax = 24 * 60 * 60_000;

/** When a job that is deferred for `pauseMs` is due. Times are in milliseconds since 1970. */
export function dueAfterMs(atMs: number, pauseMs: number): number {
  return atMs + Math.min(pauseMs, pauseMsMax);
}

/** The pause before the next attempt; `attempts` are those made so far, `random` is from 0 to 1. */
export function nextPauseMs(attempts: number, retryAfterMs: number | undefined, random: number): number {
  if (retryAfterMs !== undefined) {
    return Math.min(Math.max(retryAfterMs, retryAfterMinMs), retryAfterMaxMs);
  }
  const pauseMs = pausesMs[Math.min(attempts, pausesMs.length) - 1] ?? 60_000;
  return Math.round(pauseMs * (1 - jitter + 2 * jitter * random));
}
