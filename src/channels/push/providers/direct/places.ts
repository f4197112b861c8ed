import type { Clock } from '../../../../platform/clock.ts';

/**
 * The places of the hand-offs that a service has under way. One that has kept a hand-off waiting for so long is slow: it
 * gets no more at once than `atOnceWhileSlowMax`. With more it would hold all the places of a worker, and delay every
 * other service. Services answer within a second.
 */
const slowAfterMs = 3_000;
const atOnceWhileSlowMax = 250;

export type Places = {
  /** Returns what gives the place back; null if the service is slow, and has as many as it gets then. */
  take: () => (() => void) | null;
};

export function createPlaces(clock: Clock): Places {
  /** The oldest first. */
  const underWay = new Set<{ begunAtMs: number }>();
  const isSlow = () => {
    const [oldest] = underWay;
    return oldest !== undefined && clock.monotonicMs() - oldest.begunAtMs > slowAfterMs;
  };
  return {
    take: () => {
      if (underWay.size >= atOnceWhileSlowMax && isSlow()) return null;
      const begun = { begunAtMs: clock.monotonicMs() };
      underWay.add(begun);
      return () => {
        underWay.delete(begun);
      };
    },
  };
}
