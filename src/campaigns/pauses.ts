import type { Clock } from '../platform/clock.ts';

/** Campaigns that are left alone for a while, by this process. */
export type Pauses = {
  add: (campaignId: string, forMs: number) => void;
  /** 0 for one that is not left alone. */
  remainingMs: (campaignId: string) => number;
  list: () => string[];
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
    add: (campaignId, forMs) => {
      dropOver();
      ends.set(campaignId, clock.monotonicMs() + forMs);
    },
    remainingMs: (campaignId) => Math.max((ends.get(campaignId) ?? 0) - clock.monotonicMs(), 0),
    list: () => {
      dropOver();
      return [...ends.keys()];
    },
  };
}
