import { type Batcher, createBatcher } from '../../platform/batcher.ts';
import type { Clock } from '../../platform/clock.ts';
import type { Database } from '../../platform/postgres/database.ts';
import type { Job } from '../channel.ts';
import { announceHandOffs, type Marker } from './hand-off-store.ts';

/**
 * Markers: the jobs that a worker is about to hand off, committed before any message leaves. The worker that returns
 * the claims of a dead worker learns from them which messages may have been sent.
 *
 * A batch of hand-offs shares one marker. It is removed with the announcement of a later batch, once the outcome of
 * every job in it has been written. Until then it does no harm: it names the claim of each job, and a settled job no
 * longer has that claim. The markers of a dead worker are removed after its claims have been returned.
 */
export type Markers = {
  /**
   * Commits "about to hand off". False if the lease was taken over, so that the job is no longer this worker's. Rejects
   * if it is unknown whether the marker was stored. In both cases the job must not be handed off.
   */
  set: (job: Job) => Promise<boolean>;
  /**
   * To be called when the outcome of a job is written, or when it was given back unsent. Jobs without a marker are
   * ignored.
   */
  clear: (job: Job) => void;
};

/** With more, the first job waits longer; with fewer, commits are shared less. */
const defaultBatchItemsMax = 500;
/**
 * A wait that is short compared to the remote side's, and halves the number of commits: with 16 connections it saves a
 * sixth of the processor time of the worker and of PostgreSQL.
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
  book: MarkerBook,
): Markers {
  // One at a time: while a batch is being committed, the next one collects. Two at a time made twice as many commits.
  const announcements: Batcher<Job, boolean> = createBatcher({
    itemsMax: batchItemsMax,
    concurrency: 1,
    linger: { clock, lingerMs: batchLingerMs, itemsEnough: batchItemsEnough },
    run: async (jobs) => {
      const isOwn = await book.write(jobs, (marker) => announceHandOffs(database, jobs, marker));
      return jobs.map(() => isOwn);
    },
  });
  return { set: announcements.add, clear: book.clear };
}

/** Which markers of a worker stand, and which are over and go with the next. */
export type MarkerBook = {
  /** Has a marker for these jobs written by `announce`. */
  write: (jobs: readonly Job[], announce: (marker: Marker) => Promise<boolean>) => Promise<boolean>;
  clear: Markers['clear'];
};

export function openMarkerBook(epoch: number): MarkerBook {
  let lastBatch = 0;
  const batchOf = new Map<Job, number>();
  const jobsLeft = new Map<number, number>();
  let batchesOver: number[] = [];
  return {
    write: async (jobs, announce) => {
      lastBatch += 1;
      const batch = lastBatch;
      for (const job of jobs) batchOf.set(job, batch);
      jobsLeft.set(batch, jobs.length);
      const removed = batchesOver;
      batchesOver = [];
      try {
        return await announce({ epoch, batch, batchesOver: removed });
      } catch (cause) {
        batchesOver.push(...removed);
        throw cause;
      }
    },
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
