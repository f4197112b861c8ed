import type { Bound } from '../../platform/postgres/database.ts';
import { inOneRoundTrip } from '../../platform/postgres/round-trip.ts';
import type { Lease } from '../../platform/queue/lease.ts';
import type { Job } from '../channel.ts';
import { type Announced, announcementOf } from './hand-off-store.ts';
import type { MarkerBook } from './markers.ts';
import { findListeners } from '../recipients/told-contacts.ts';
import { isPlainlyTaken, writeTaken } from './taken.ts';
import { type Settled, writeSettlements, type WriterTools, writeUntilSettled } from './settlement-writer.ts';

/**
 * The ledger of a channel: one transaction at a time writes all outcomes since the last one, and announces all hand-offs
 * that wait for it, or one at a time does each of the two. So a recipient costs a small part of a transaction, and however slow the database is, no more is
 * uncertain after a crash than what was announced and not written. A job is the same object from its claim to its outcome:
 * of a copy nobody would know that it is announced.
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

/** With more, one transaction takes longer than what follows it can wait. */
const itemsMax = 500;

export type LedgerOptions = {
  lease: Lease;
  book: MarkerBook;
  /** Hand-offs that may be announced and not settled at a time. */
  announcedMax: number;
  /**
   * Whether announcements have transactions of their own. With outcomes in theirs, a hand-off waits longer, and for one that
   * is not announced ahead its connection waits as well.
   */
  isAnnouncedApart: boolean;
};

/**
 * Outcomes that no announcement waits for are written as soon as there are so many, or after so long: what is written
 * together costs less each. With a longer wait or larger batches, more outcomes are lost when a worker dies.
 */
const outcomesEnough = 64;
const outcomesWaitMs = 20;

/**
 * The same where announcements are in the transactions of outcomes: a connection that has a hand-off under way can wait
 * for the announcement of its next one. Signed mail, which leaves more slowly, had twice as many transactions without.
 */
const aheadWaitMs = 5;

export function openLedger(tools: WriterTools, options: LedgerOptions): Ledger {
  const { lease, book, announcedMax, isAnnouncedApart } = options;
  const announcements: Waiting<Job, boolean>[] = [];
  const taken: Waiting<Settled, boolean>[] = [];
  const outcomes: Waiting<Settled, boolean>[] = [];
  /** Organizations with a segment that reads messages. */
  const readers = new Set<string>();
  const promises = new WeakMap<Job, Promise<boolean>>();
  const announced = new Set<Job>();
  /** Those that have an outcome, which may be written before their announcement. */
  const ended = new WeakSet<Job>();
  /** Hand-offs whose connection waits for the announcement. */
  let waitedFor = 0;
  let isWriting = false;
  let isAnnouncing = false;
  let cancelWait: (() => void) | null = null;

  /** `write` stores the announcement, alone or with outcomes. */
  const announce = async (
    jobs: readonly Waiting<Job, boolean>[],
    write: (announcement: Bound<Announced>) => Promise<readonly Announced[]>,
  ) => {
    const given = jobs.map(({ item }) => item);
    const isOwn = await book.write(
      given,
      async (marker) => (await write(announcementOf(given, marker))).length > 0,
    );
    for (const { item, resolve } of jobs) {
      if (isOwn && !ended.has(item)) announced.add(item);
      resolve(isOwn);
    }
  };

  const announceAlone = (jobs: readonly Waiting<Job, boolean>[]) =>
    announce(jobs, ({ statement, values }) => inOneRoundTrip(tools.database, statement, values)).catch(
      (cause: unknown) => {
        for (const { reject } of jobs) reject(cause);
      },
    );

  const settleAlone = async (settled: readonly Waiting<Settled, boolean>[]) => {
    try {
      const written = await writeUntilSettled(
        tools,
        lease,
        settled.map(({ item }) => item),
      );
      settled.forEach(({ item, resolve }, index) => {
        announced.delete(item.settlement.job);
        resolve(written[index] === true);
      });
    } catch (cause) {
      for (const { item, reject } of settled) {
        announced.delete(item.settlement.job);
        reject(cause);
      }
    }
  };

  const writeTogether = async (
    jobs: readonly Waiting<Job, boolean>[],
    settled: readonly Waiting<Settled, boolean>[],
    writeOutcomes: typeof writeSettlements,
  ) => {
    const write = (announcement: Bound<Announced> | null) =>
      writeOutcomes(
        tools,
        lease.epoch,
        settled.map(({ item }) => item),
        announcement,
      );
    try {
      await (jobs.length > 0 ? announce(jobs, write) : write(null));
    } catch {
      // What failed may be the outcomes: they are written by themselves then, and the hand-offs announced after them.
      await settleAlone(settled);
      if (jobs.length > 0) await announceAlone(jobs);
      return;
    }
    for (const { item, resolve } of settled) {
      announced.delete(item.settlement.job);
      resolve(true);
    }
  };

  const isPlain = ({ settlement, ...rest }: Settled) =>
    !readers.has(settlement.job.organizationId) && isPlainlyTaken(tools, { settlement, ...rest });

  const countOutcomes = () => taken.length + outcomes.length;
  const mayAnnounce = () => announcements.length > 0 && announced.size < announcedMax;

  const writeNext = async () => {
    const plain = taken.splice(0, itemsMax);
    const settled = outcomes.splice(0, itemsMax);
    const isOver = (plain.length > 0 ? plain : settled).filter(({ item }) =>
      announced.has(item.settlement.job),
    );
    const room = announcedMax - announced.size + isOver.length;
    const jobs = isAnnouncedApart ? [] : announcements.splice(0, Math.max(0, room));
    if (plain.length > 0) await writeTogether(jobs, plain, writePlain);
    else if (settled.length > 0) await writeTogether(jobs, settled, writeSettlements);
    else if (jobs.length > 0) await announceAlone(jobs);
    if (plain.length > 0 && settled.length > 0) await writeTogether([], settled, writeSettlements);
  };

  const writePlain: typeof writeSettlements = async (given, epoch, items, announcement = null) => {
    const announced = await writeTaken(given, epoch, items, announcement);
    if (announced !== null) return announced;
    const jobs = items.map(({ settlement }) => settlement.job);
    for (const organizationId of await findListeners(given.database, jobs)) readers.add(organizationId);
    return writeSettlements(given, epoch, items, announcement);
  };

  const isSomethingToWrite = () => countOutcomes() > 0 || (!isAnnouncedApart && mayAnnounce());

  const isWorthWriting = () => {
    if (isAnnouncedApart) return countOutcomes() >= outcomesEnough;
    if (!isSomethingToWrite()) return false;
    const isNothingUnderWay = countOutcomes() >= announced.size;
    return waitedFor > 0 || isNothingUnderWay || countOutcomes() + announcements.length >= announcedMax / 2;
  };

  const writeAll = async () => {
    do {
      await writeNext();
      // Those whose connection is free by now announce what follows, so that it is in the next transaction.
      await new Promise(setImmediate);
      beginAnnouncing();
    } while (isWorthWriting());
    isWriting = false;
    begin();
  };

  const announceAll = async () => {
    while (mayAnnounce()) {
      await announceAlone(announcements.splice(0, announcedMax - announced.size));
      await new Promise(setImmediate);
    }
    isAnnouncing = false;
  };

  const beginAnnouncing = () => {
    if (!isAnnouncedApart || isAnnouncing || !mayAnnounce()) return;
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
    if (isWorthWriting()) beginWriting();
    else if (isSomethingToWrite())
      cancelWait ??= tools.clock.after(isAnnouncedApart ? outcomesWaitMs : aheadWaitMs, beginWriting);
  };

  const add = <Item>(waiting: Waiting<Item, boolean>[], item: Item) =>
    new Promise<boolean>((resolve, reject) => {
      waiting.push({ item, resolve, reject });
      begin();
    });

  /** It ended before it was announced. */
  const forget = (job: Job) => {
    const index = announcements.findIndex(({ item }) => item === job);
    const [forgotten] = index < 0 ? [] : announcements.splice(index, 1);
    forgotten?.resolve(false);
  };

  const announceOnce = (job: Job): Promise<boolean> => {
    const made = promises.get(job) ?? add(announcements, job);
    promises.set(job, made);
    return made;
  };

  const announceAtOnce = async (job: Job): Promise<boolean> => {
    waitedFor += 1;
    try {
      const made = announceOnce(job);
      begin();
      return await made;
    } finally {
      waitedFor -= 1;
    }
  };

  return {
    announce: (job) => (announced.has(job) ? announceOnce(job) : announceAtOnce(job)),
    announceAhead: (job) => {
      announceOnce(job).catch(() => undefined);
    },
    settle: (settled) => {
      ended.add(settled.settlement.job);
      forget(settled.settlement.job);
      return add(isPlain(settled) ? taken : outcomes, settled);
    },
  };
}

type Waiting<Item, Result> = {
  item: Item;
  resolve: (result: Result) => void;
  reject: (cause: unknown) => void;
};
