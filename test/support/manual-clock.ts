/** A clock that stands still until a test moves it. */
import type { Clock } from '../../src/platform/clock.ts';

export type ManualClock = Clock & {
  /** Moves wall time and monotonic time on. What falls due on the way runs in its order, at its own instant. */
  advance: (byMs: number) => void;
  /** Sets the wall clock, also back; the monotonic one does not notice. */
  setWallTime: (epochMs: number) => void;
  /** Resolves as soon as so many callbacks wait for their time. */
  whenWaiting: (count: number) => Promise<void>;
  /** How many callbacks wait for their time. */
  countWaiting: () => number;
};

type Timer = { dueAtMs: number; callback: () => void };

export function createManualClock(
  startEpochMs: number = Date.parse('2026-11-21T12:00:00.000Z'),
): ManualClock {
  let wallMs = startEpochMs;
  let monotonicMs = 1_000;
  const timers = new Set<Timer>();
  let expectations: { count: number; resolve: () => void }[] = [];

  const nextDue = (untilMs: number): Timer | undefined =>
    [...timers].filter(({ dueAtMs }) => dueAtMs <= untilMs).sort((a, b) => a.dueAtMs - b.dueAtMs)[0];
  const moveTo = (targetMs: number) => {
    wallMs += targetMs - monotonicMs;
    monotonicMs = targetMs;
  };

  return {
    nowMs: () => wallMs,
    monotonicMs: () => monotonicMs,
    after: (delayMs, callback) => {
      const timer = { dueAtMs: monotonicMs + delayMs, callback };
      timers.add(timer);
      const met = expectations.filter(({ count }) => timers.size >= count);
      expectations = expectations.filter((expectation) => !met.includes(expectation));
      for (const { resolve } of met) resolve();
      return () => {
        timers.delete(timer);
      };
    },
    advance: (byMs) => {
      const targetMs = monotonicMs + byMs;
      for (let timer = nextDue(targetMs); timer !== undefined; timer = nextDue(targetMs)) {
        timers.delete(timer);
        moveTo(timer.dueAtMs);
        timer.callback();
      }
      moveTo(targetMs);
    },
    setWallTime: (epochMs) => {
      wallMs = epochMs;
    },
    countWaiting: () => timers.size,
    whenWaiting: (count) =>
      timers.size >= count
        ? Promise.resolve()
        : new Promise((resolve) => {
            expectations.push({ count, resolve });
          }),
  };
}
