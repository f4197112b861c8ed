import type { Clock } from '../clock.ts';

/** What this process pauses for a while: campaigns, for instance. */
export type Pauses = {
  add: (id: string, forMs: number) => void;
  /** 0 for one that is not paused. */
  remainingMs: (id: string) => number;
  list: () => string[];
  /** How long until the first pause is over; null without any. */
  soonestMs: () => number | null;
};

export function createPauses(clock: Clock): Pauses {
  const ends = new Map<string, number>();
  const dropOver = () => {
    const atMs = clock.monotonicMs();
    for (const [id, endMs] of ends) {
      if (endMs <= atMs) ends.delete(id);
    }
  };
  return {
    add: (id, forMs) => {
      dropOver();
      ends.set(id, clock.monotonicMs() + forMs);
    },
    remainingMs: (id) => Math.max((ends.get(id) ?? 0) - clock.monotonicMs(), 0),
    list: () => {
      dropOver();
      return [...ends.keys()];
    },
    soonestMs: () => {
      dropOver();
      let firstMs: number | null = null;
      for (const endMs of ends.values()) firstMs = firstMs === null ? endMs : Math.min(firstMs, endMs);
      return firstMs && firstMs - clock.monotonicMs();
    },
  };
}

/** Less would try what always fails too often; more would keep what failed once for longer. */
const failurePauseMinMs = 60_000;
/** Less would let what always fails fill the log; more delays it for longer once its cause is gone. */
const failurePauseMaxMs = 60 * 60_000;

/**
 * How long work that failed is put off, in milliseconds, where it has waited for so long since it was asked for: for as
 * long again, so that each pause is longer than the one before and failures need not be counted.
 */
export function pauseAfterFailureMs(waitedMs: number): number {
  return Math.min(Math.max(waitedMs, failurePauseMinMs), failurePauseMaxMs);
}
