import type { Clock } from './clock.ts';

/**
 * A function that, called often, calls another at most once an interval, at the end of the interval: calls in between
 * are merged into one.
 */
export function createThrottle(clock: Clock, intervalMs: number, call: () => void): () => void {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    clock.after(intervalMs, () => {
      isDue = false;
      call();
    });
  };
}
