import { type Batcher, createBatcher } from '../../platform/batcher.ts';
import type { Clock } from '../../platform/clock.ts';
import type { Database } from '../../platform/postgres/database.ts';
import type { SuppressionTools } from '../../audience/audience.ts';
import type { Job } from '../channel.ts';
import { findObjections, type Objection } from './unwanted.ts';

/** Looks objections to jobs up when they are claimed, and again for those that have waited since. */
export type ObjectionLookups = {
  /** Of jobs that were just claimed. */
  find: (jobs: readonly Job[]) => Promise<Map<Job, Objection>>;
  /**
   * Of a job that may have waited in memory for a long time for slow destinations. No promise if objections are known by
   * now.
   */
  findLate: (job: Job) => Promise<Objection | undefined> | undefined;
};

/**
 * A recipient that unsubscribed longer ago than this gets nothing more. If shorter, more statements are needed for few
 * more unsubscriptions.
 */
const objectionMaxAgeMs = 2_000;

export function createObjectionLookups(
  tools: SuppressionTools & { database: Database; clock: Clock },
): ObjectionLookups {
  const { clock } = tools;
  const askedAtMs = new WeakMap<Job, number>();
  const batcher: Batcher<Job, Objection | undefined> = createBatcher({
    itemsMax: 500,
    concurrency: 2,
    run: async (jobs) => {
      const objections = await findObjections(tools, jobs);
      return jobs.map((job) => objections.get(job));
    },
  });
  const lookUp = async (job: Job) => {
    const nowMs = clock.monotonicMs();
    const objection = await batcher.add(job);
    askedAtMs.set(job, nowMs);
    return objection;
  };
  return {
    find: async (jobs) => {
      const nowMs = clock.monotonicMs();
      const objections = await findObjections(tools, jobs);
      for (const job of jobs) askedAtMs.set(job, nowMs);
      return objections;
    },
    findLate: (job) => {
      const ageMs = clock.monotonicMs() - (askedAtMs.get(job) ?? -Infinity);
      return ageMs < objectionMaxAgeMs ? undefined : lookUp(job);
    },
  };
}
