import type { Lease } from '../../platform/queue/lease.ts';
import type { Job } from '../channel.ts';
import {
  type LedgerRules,
  mayAnnounce,
  nextAnnouncements,
  nextWrite,
  nextWriteInMs,
  openLedgerState,
  takeOut,
  type Waiting,
} from './ledger-state.ts';
import { openLedgerWriter } from './ledger-writer.ts';
import { openMarkerBook } from './markers.ts';
import type { Settled, WriterTools } from './settlement-writer.ts';

/**
 * The ledger of a channel: one transaction at a time writes all outcomes since the last one, and announces all hand-offs
 * that wait for it, or one at a time does each of the two. So a recipient costs a small part of a transaction, and however
 * slow the database is, no more is uncertain after a crash than what was announced and not written. What there is to write
 * is a state (ledger-state.ts), from which the next write follows; ledger-writer.ts writes it.
 *
 * A job is the same object from its claim to its outcome: of a copy nobody would know that it is announced.
 */
export type Ledger = {
  /**
   * Commits "about to hand off", or has done so already. False if the lease was taken over, so that the job is no longer
   * this worker's. Rejects if it is unknown whether the marker was stored. In both cases the job must not be handed off.
   */
  announce: (job: Job) => Promise<boolean>;
  /** Lets a hand-off that nobody waits for yet be announced with others. Whoever calls `announce` learns what became of it. */
  announceAhead: (job: Job) => void;
  /** Writes an outcome, and returns whether it was written. */
  settle: (settled: Settled) => Promise<boolean>;
};

export type LedgerOptions = LedgerRules & {
  lease: Lease;
  /** Numbers the batches of markers of a lease, of all of its ledgers. */
  nextBatch: () => number;
};

export function openLedger(tools: WriterTools, options: LedgerOptions): Ledger {
  const { lease, nextBatch, isAnnouncedApart } = options;
  const state = openLedgerState();
  const promises = new WeakMap<Job, Promise<boolean>>();
  const ended = new WeakSet<Job>();
  const writer = openLedgerWriter(tools, {
    lease,
    markers: openMarkerBook(lease.epoch, nextBatch),
    state,
    hasEnded: (job) => ended.has(job),
  });
  let isWriting = false;
  let isAnnouncing = false;
  let cancelWait: (() => void) | null = null;

  const writeAll = async () => {
    do {
      const write = nextWrite(state, options);
      takeOut(state, write);
      await writer.write(write);
      // Those whose connection is free by now announce what follows, so that it is in the next transaction.
      await new Promise(setImmediate);
      beginAnnouncing();
    } while (nextWriteInMs(state, options) === 0);
    isWriting = false;
    begin();
  };

  const announceAll = async () => {
    while (mayAnnounce(state, options)) {
      const jobs = nextAnnouncements(state, options);
      takeOut(state, { announcements: jobs, taken: [], outcomes: [] });
      await writer.announce(jobs);
      await new Promise(setImmediate);
    }
    isAnnouncing = false;
  };

  const beginAnnouncing = () => {
    if (!isAnnouncedApart || isAnnouncing || !mayAnnounce(state, options)) return;
    isAnnouncing = true;
    setImmediate(() => void announceAll());
  };

  const beginWriting = () => {
    cancelWait?.();
    cancelWait = null;
    isWriting = true;
    setImmediate(() => void writeAll());
  };

  const begin = () => {
    beginAnnouncing();
    if (isWriting) return;
    const waitMs = nextWriteInMs(state, options);
    if (waitMs === 0) beginWriting();
    else if (waitMs !== null) cancelWait ??= tools.clock.after(waitMs, beginWriting);
  };

  const add = <Item>(waiting: Waiting<Item>[], item: Item) =>
    new Promise<boolean>((resolve, reject) => {
      waiting.push({ item, resolve, reject });
      begin();
    });

  /** It ended before it was announced. */
  const forget = (job: Job) => {
    const index = state.announcements.findIndex(({ item }) => item === job);
    const [forgotten] = index < 0 ? [] : state.announcements.splice(index, 1);
    forgotten?.resolve(false);
  };

  const announceOnce = (job: Job): Promise<boolean> => {
    const made = promises.get(job) ?? add(state.announcements, job);
    promises.set(job, made);
    return made;
  };

  const announceAtOnce = async (job: Job): Promise<boolean> => {
    state.waitedFor += 1;
    try {
      const made = announceOnce(job);
      begin();
      return await made;
    } finally {
      state.waitedFor -= 1;
    }
  };

  return {
    announce: (job) => (state.announced.has(job) ? announceOnce(job) : announceAtOnce(job)),
    announceAhead: (job) => {
      announceOnce(job).catch(() => undefined);
    },
    settle: (settled) => {
      ended.add(settled.settlement.job);
      forget(settled.settlement.job);
      return add(writer.isTaken(settled) ? state.taken : state.outcomes, settled);
    },
  };
}
