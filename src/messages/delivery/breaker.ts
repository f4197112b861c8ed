import { LRUCache } from 'lru-cache';
import type { Clock } from '../../platform/clock.ts';
import type { ChannelDelivery, Job } from '../channel.ts';

/**
 * Keeps a worker from trying a provider that is down. **Closed**: all jobs go through. After some failures in a row
 * that concern the provider and not a message, it **opens**: no job goes through for a pause. Then one job goes through
 * as a **probe**: if it fails too, the next pause is twice as long, else the breaker closes.
 */
export type Breaker = {
  /** How many of so many jobs may go through now. */
  admits: (jobs: number) => number;
  /** How long to wait while it is open, else null. */
  pauseMs: () => number | null;
  /** Whether a job may go through. A probe must end with `note` or `abandonProbe`. */
  enter: () => 'passes' | 'probes' | 'refused';
  /** The probe's outcome says nothing about the provider, so the next job probes. */
  abandonProbe: () => void;
  /** Whether it is open, and has failed not so long ago that nothing can be waiting for it any more. */
  isTold: () => boolean;
  /** Counts an outcome and says what it changed. */
  note: (isUnavailable: boolean) => 'opened' | 'closed' | null;
};

/** A single refused connection among many that work is not an outage. */
const failuresMax = 5;
const pauseMinMs = 1_000;
const pauseMaxMs = 30_000;

/**
 * How long after the last failure operators are told of it. If shorter than the pause before any next attempt
 * (`retry.ts`), what messages still wait for would seem to work meanwhile. If longer, what nobody uses any more is told
 * for longer, since only an attempt closes a breaker. docs/monitoring.md says it.
 */
export const toldMs = 8 * 60 * 60_000;

export function createBreaker(clock: Clock): Breaker {
  let failures = 0;
  let pauseMs = 0;
  let openUntilMs = 0;
  let failedAtMs = 0;
  let isProbing = false;

  const isTripped = () => pauseMs > 0;
  const remainingMs = () => Math.max(0, openUntilMs - clock.monotonicMs());

  return {
    admits: (jobs) => {
      if (!isTripped()) return jobs;
      if (remainingMs() > 0 || isProbing) return 0;
      return Math.min(jobs, 1);
    },
    isTold: () => isTripped() && clock.monotonicMs() - failedAtMs < toldMs,
    pauseMs: () => (isTripped() && remainingMs() > 0 ? remainingMs() : null),
    enter: () => {
      if (!isTripped()) return 'passes';
      if (remainingMs() > 0 || isProbing) return 'refused';
      isProbing = true;
      return 'probes';
    },
    abandonProbe: () => {
      isProbing = false;
    },
    note: (isUnavailable) => {
      if (!isUnavailable) {
        const wasTripped = isTripped();
        failures = 0;
        pauseMs = 0;
        isProbing = false;
        return wasTripped ? 'closed' : null;
      }
      failures += 1;
      failedAtMs = clock.monotonicMs();
      if (!isTripped() && failures < failuresMax) return null;
      // Jobs that were under way when it opened say nothing new.
      if (isTripped() && !isProbing) return null;
      isProbing = false;
      pauseMs = Math.min(Math.max(pauseMs * 2, pauseMinMs), pauseMaxMs);
      openUntilMs = clock.monotonicMs() + pauseMs;
      return 'opened';
    },
  };
}

/** The breakers of one channel: a single one, or one for each account at its provider. */
export type Breakers = {
  /** Null if there is one for all jobs. */
  accountOf: ((job: Job) => string) | null;
  of: (job: Job) => Breaker;
  /** How many of so many jobs are worth claiming now. */
  admits: (jobs: number) => number;
  /** How long no job is worth claiming, else null. */
  pauseMs: () => number | null;
  /** How many operators are told of. */
  countTold: () => number;
  /** How long a job that was refused stays in the queue. */
  putOffMs: (job: Job, random: number) => number;
};

/** Breakers in memory. With fewer, a failing account is tried five times again after its breaker was forgotten. */
export const accountsMax = 10_000;

/**
 * The jobs of a failing account become due again spread over this time. If shorter, a long queue of such jobs is
 * claimed again and again for nothing. If longer, they wait after the account works again.
 */
const putOffSpreadMs = 60_000;

export function createBreakers(clock: Clock, accountOf: ChannelDelivery['accountOf']): Breakers {
  if (accountOf === null) {
    const breaker = createBreaker(clock);
    const { admits, pauseMs, isTold } = breaker;
    const countTold = () => (isTold() ? 1 : 0);
    return { accountOf, of: () => breaker, admits, pauseMs, countTold, putOffMs: () => 0 };
  }
  const byAccount = new LRUCache<string, Breaker>({ max: accountsMax });
  const of = (job: Job) => {
    const account = accountOf(job);
    const known = byAccount.get(account);
    if (known !== undefined) return known;
    const breaker = createBreaker(clock);
    byAccount.set(account, breaker);
    return breaker;
  };
  return {
    accountOf,
    of,
    admits: (jobs) => jobs,
    pauseMs: () => null,
    countTold: () => [...byAccount.values()].filter(({ isTold }) => isTold()).length,
    putOffMs: (job, random) => (of(job).pauseMs() ?? pauseMinMs) + random * putOffSpreadMs,
  };
}
