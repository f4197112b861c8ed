import type { Clock } from '../../../../platform/clock.ts';

/**
 * How many texts may wait for their answer at once on one connection: its window, and less for a while after the
 * provider has said that it gets too many. Each such answer halves what is allowed and stops everything for a pause,
 * longer each time. As many acceptances as are allowed at once allow one more, up to the window, and the first
 * resets the length of the pause.
 */
export type Pace = {
  /** How many may be under way now; zero during a pause. */
  allowed: () => number;
  /** How long the pause still lasts; zero if there is none. */
  pauseLeftMs: () => number;
  noteAccepted: () => void;
  noteThrottled: () => void;
};

/** Shorter: a provider that counts by the second refuses again. Longer: a short disturbance costs throughput. */
const firstPauseMs = 250;
const longestPauseMs = 4_000;

export function createPace(clock: Clock, window: number): Pace {
  let allowed = window;
  let pauseMs = 0;
  let pausedUntilMs = -Infinity;
  const pauseLeftMs = () => Math.max(0, pausedUntilMs - clock.monotonicMs());
  return {
    allowed: () => (pauseLeftMs() > 0 ? 0 : Math.floor(allowed)),
    pauseLeftMs,
    noteAccepted: () => {
      if (pauseLeftMs() > 0) return;
      allowed = Math.min(window, allowed + 1 / allowed);
      pauseMs = 0;
    },
    noteThrottled: () => {
      // What was under way when the pause began says nothing new.
      if (pauseLeftMs() > 0) return;
      allowed = Math.max(1, Math.floor(allowed / 2));
      pauseMs = Math.min(longestPauseMs, Math.max(firstPauseMs, 2 * pauseMs));
      pausedUntilMs = clock.monotonicMs() + pauseMs;
    },
  };
}
