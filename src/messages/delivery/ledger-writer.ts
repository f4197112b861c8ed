import type { Bound } from '../../platform/postgres/database.ts';
import { inOneRoundTrip } from '../../platform/postgres/round-trip.ts';
import type { Lease } from '../../platform/queue/lease.ts';
import type { Job } from '../channel.ts';
import { findListeners } from '../recipients/told-contacts.ts';
import { type Announced, announcementOf } from './hand-off-store.ts';
import type { LedgerState, Waiting, Write } from './ledger-state.ts';
import type { MarkerBook } from './markers.ts';
import { type Settled, writeSettlements, type WriterTools, writeUntilSettled } from './settlement-writer.ts';
import { isPlainlyTaken, writeTaken } from './taken.ts';

/** Writes what a ledger has to write, and tells those who wait for it. Nothing of it rejects. */
export type LedgerWriter = {
  announce: (jobs: readonly Waiting<Job>[]) => Promise<void>;
  write: (write: Write) => Promise<void>;
  /** Whether an outcome is of the usual kind, and may be written as `taken`. */
  isTaken: (settled: Settled) => boolean;
};

export type LedgerWriterOptions = {
  lease: Lease;
  markers: MarkerBook;
  state: LedgerState;
  /** Whether a job has an outcome, which may be written before its announcement. */
  hasEnded: (job: Job) => boolean;
};

export function openLedgerWriter(
  tools: WriterTools,
  { lease, markers, state, hasEnded }: LedgerWriterOptions,
): LedgerWriter {
  /** Organizations with a segment that reads messages. */
  const readers = new Set<string>();

  /** `store` stores the announcement, alone or with outcomes. */
  const announceBy = async (
    jobs: readonly Waiting<Job>[],
    store: (announcement: Bound<Announced>) => Promise<readonly Announced[]>,
  ) => {
    const given = jobs.map(({ item }) => item);
    const isOwn = await markers.write(
      given,
      async (marker) => (await store(announcementOf(given, marker))).length > 0,
    );
    for (const { item, resolve } of jobs) {
      if (isOwn && !hasEnded(item)) state.announced.add(item);
      resolve(isOwn);
    }
  };

  const announce = async (jobs: readonly Waiting<Job>[]) => {
    try {
      await announceBy(jobs, ({ statement, values }) => inOneRoundTrip(tools.database, statement, values));
    } catch (cause) {
      for (const { reject } of jobs) reject(cause);
    }
  };

  const end = ({ item: { settlement }, resolve }: Waiting<Settled>, isWritten: boolean) => {
    state.announced.delete(settlement.job);
    if (isWritten) markers.clear(settlement.job);
    resolve(isWritten);
  };

  const settle = async (settled: readonly Waiting<Settled>[]) => {
    const items = settled.map(({ item }) => item);
    try {
      const written = await writeUntilSettled(tools, lease, items);
      for (const [index, each] of settled.entries()) end(each, written[index] === true);
    } catch (cause) {
      for (const { item, reject } of settled) {
        state.announced.delete(item.settlement.job);
        reject(cause);
      }
    }
  };

  const writeTogether = async (
    jobs: readonly Waiting<Job>[],
    settled: readonly Waiting<Settled>[],
    writeOutcomes: typeof writeSettlements,
  ) => {
    const items = settled.map(({ item }) => item);
    const store = (announcement: Bound<Announced> | null) =>
      writeOutcomes(tools, lease.epoch, items, announcement);
    try {
      await (jobs.length > 0 ? announceBy(jobs, store) : store(null));
    } catch {
      // What failed may be the outcomes: they are written by themselves then, and the hand-offs announced after them.
      await settle(settled);
      if (jobs.length > 0) await announce(jobs);
      return;
    }
    for (const each of settled) end(each, true);
  };

  /** As the others, once a segment reads messages: it must hear of the outcomes. */
  const writeTakenOrAll: typeof writeSettlements = async (given, epoch, items, announcement = null) => {
    const announced = await writeTaken(given, epoch, items, announcement);
    if (announced !== null) return announced;
    const jobs = items.map(({ settlement }) => settlement.job);
    for (const organizationId of await findListeners(given.database, jobs)) readers.add(organizationId);
    return writeSettlements(given, epoch, items, announcement);
  };

  return {
    announce,
    write: async ({ announcements, taken, outcomes }) => {
      if (taken.length > 0) {
        await writeTogether(announcements, taken, writeTakenOrAll);
        if (outcomes.length > 0) await writeTogether([], outcomes, writeSettlements);
      } else if (outcomes.length > 0) await writeTogether(announcements, outcomes, writeSettlements);
      else if (announcements.length > 0) await announce(announcements);
    },
    isTaken: (settled) =>
      !readers.has(settled.settlement.job.organizationId) && isPlainlyTaken(tools, settled),
  };
}
