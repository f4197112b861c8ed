import type { Clock } from './clock.ts';

/**
 * A function that, called often, calls another at most once an interval, after the interval is over: what was told
 * meanwhile is told once.
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
