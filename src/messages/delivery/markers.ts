import { type Batcher, createBatcher } from '../../platform/batcher.ts';
import type { Clock } from '../../platform/clock.ts';
import type { Database } from '../../platform/postgres/database.ts';
import type { Job } from '../channel.ts';
import { announceHandOffs } from './hand-off-store.ts';

/**
 * Markers: what a worker is about to hand off, committed before any of it leaves, so that whoever returns the claims
 * of a dead worker knows which messages may have left.
 *
 * A batch of hand-offs shares one marker. It is removed with the announcement of a later batch, once the outcome of
 * every job in it has been written. Until then it says nothing wrong: it names the claim by which each job was taken,
 * and a job that was settled has left that claim. What a worker leaves behind is removed after its claims have been
 * returned.
 */
export type Markers = {
  /**
   * Commits "about to hand off". False if the worker was buried, so that the job is not its own any more; rejects if
   * nobody can say whether the marker stands. In both cases the job must not be handed off.
   */
  set: (job: Job) => Promise<boolean>;
  /** The outcome of a job is written, or nothing was sent and it was given back; any job may be told of. */
  clear: (job: Job) => void;
};

/** More would lengthen the wait of the first; fewer would share less. */
const defaultBatchItemsMax = 500;
/**
 * A wait that is small beside that for the remote side, for half as many commits: with 16 connections it spares a
 * sixth of the worker's and of PostgreSQL's processor time.
 */
const batchLingerMs = 2;
const batchItemsEnough = 64;

export type MarkerTools = {
  database: Database;
  clock: Clock;
  /** Smaller in tests. */
  batchItemsMax?: number;
};

export function createMarkers(
  { database, clock, batchItemsMax = defaultBatchItemsMax }: MarkerTools,
  epoch: number,
): Markers {
  let lastBatch = 0;
  const batchOf = new Map<Job, number>();
  const jobsLeft = new Map<number, number>();
  let batchesOver: number[] = [];

  // One at a time: while some are being committed, the next ones gather. Two made twice the commits.
  const announcements: Batcher<Job, boolean> = createBatcher({
    itemsMax: batchItemsMax,
    concurrency: 1,
    linger: { clock, lingerMs: batchLingerMs, itemsEnough: batchItemsEnough },
    run: async (jobs) => {
      lastBatch += 1;
      const batch = lastBatch;
      for (const job of jobs) batchOf.set(job, batch);
      jobsLeft.set(batch, jobs.length);
      const removed = batchesOver;
      batchesOver = [];
      try {
        const isOwn = await announceHandOffs(database, jobs, { epoch, batch, batchesOver: removed });
        return jobs.map(() => isOwn);
      } catch (cause) {
        batchesOver.push(...removed);
        throw cause;
      }
    },
  });

  return {
    set: announcements.add,
    clear: (job) => {
      const batch = batchOf.get(job);
      if (batch === undefined) return;
      batchOf.delete(job);
      const left = (jobsLeft.get(batch) ?? 0) - 1;
      jobsLeft.set(batch, left);
      if (left > 0) return;
      jobsLeft.delete(batch);
      batchesOver.push(batch);
    },
  };
}
