import type { Job } from '../channel.ts';
import type { Marker } from './hand-off-store.ts';

/**
 * Markers: the jobs that a worker is about to hand off, committed before any message leaves. The worker that returns
 * the claims of a dead worker learns from them which messages may have been sent.
 *
 * A batch of hand-offs shares one marker. It is removed with the announcement of a later batch, once the outcome of
 * every job in it has been written. Until then it does no harm: it names the claim of each job, and a settled job no
 * longer has that claim. The markers of a dead worker are removed after its claims have been returned.
 */
export type MarkerBook = {
  /** Has a marker for these jobs written by `announce`. */
  write: (jobs: readonly Job[], announce: (marker: Marker) => Promise<boolean>) => Promise<boolean>;
  /**
   * To be called when the outcome of a job is written, or when it was given back unsent. Jobs without a marker are
   * ignored.
   */
  clear: (job: Job) => void;
};

/** `nextBatch` numbers the batches of all books of the worker. */
export function openMarkerBook(epoch: number, nextBatch: () => number): MarkerBook {
  const batchOf = new Map<Job, number>();
  const jobsLeft = new Map<number, number>();
  let batchesOver: number[] = [];
  return {
    write: async (jobs, announce) => {
      const batch = nextBatch();
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
