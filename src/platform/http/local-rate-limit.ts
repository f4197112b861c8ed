import { LRUCache } from 'lru-cache';
import type { Clock } from '../clock.ts';
import type { RateVerdict } from './rate-limit.ts';

/** Counts in windows of 60 seconds in the memory of this node. */
export type LocalRateLimiter = {
  /** Counts one request and says whether it was within the limit. */
  count: (subject: string) => RateVerdict;
};

const windowMs = 60_000;

/**
 * For subjects of which there are too many to count them in the database, as `createRateLimiter` does. Several nodes let
 * as many times the limit through. Of more than `subjectsMax` subjects in a minute, those that asked longest ago begin
 * anew.
 */
export function createLocalRateLimiter(
  { clock }: { clock: Clock },
  { limit, subjectsMax }: { limit: number; subjectsMax: number },
): LocalRateLimiter {
  const windows = new LRUCache<string, { startMs: number; used: number }>({ max: subjectsMax });
  return {
    count: (subject) => {
      const nowMs = clock.monotonicMs();
      let window = windows.get(subject);
      if (window === undefined || nowMs - window.startMs >= windowMs) {
        window = { startMs: nowMs, used: 0 };
        windows.set(subject, window);
      }
      const isWithin = window.used < limit;
      if (isWithin) window.used += 1;
      return {
        isWithin,
        limit,
        remaining: limit - window.used,
        // The monotonic clock counts in fractions, which would round a whole window up to one second more.
        resetSeconds: Math.min(Math.ceil((window.startMs + windowMs - nowMs) / 1_000), windowMs / 1_000),
      };
    },
  };
}
