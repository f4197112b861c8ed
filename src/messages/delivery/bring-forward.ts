import { bringConversionsForward } from '../../events/events.ts';
import { dateOf, type Clock } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/postgres/database.ts';
import { wakeOnce } from '../../platform/queue/wake.ts';
import type { MessageChannels } from '../channel.ts';
import type { RecipientKey } from '../keys.ts';
import {
  bringReportsForward,
  listWaitingAfter,
  makeDue,
  type WaitingJob,
  type WaitingTimes,
} from './bring-forward-store.ts';
import { pauseMsMax } from './retry.ts';

/**
 * Clocks of nodes are milliseconds apart: a message accepted later than this from now was accepted while the clock was
 * ahead.
 */
const aheadMsMax = 60_000;

/** Rows that a statement reads or changes. More would take longer, and lock the changed rows longer. */
const defaultRowsMax = 5_000;

/** Only the first ten million jobs of a queue are read; the rest is read when the queue is shorter. */
const statementsMax = 2_000;

/**
 * Housekeeping: jobs that were accepted or deferred while the clock was ahead would wait until that time. They are made
 * due at once.
 *
 * The queue is read once, in the order of its key. An index by time of acceptance would make this faster, but each
 * claim, hand-off and settlement slower: they write a new version of the row in every index.
 */
export async function bringForward({
  database,
  clock,
  channels,
  rowsMax = defaultRowsMax,
}: {
  database: Database;
  clock: Clock;
  channels: MessageChannels;
  /** Smaller in tests. */
  rowsMax?: number;
}): Promise<void> {
  const nowMs = clock.nowMs();
  const times = {
    at: dateOf(nowMs),
    dueLatest: dateOf(nowMs + pauseMsMax + aheadMsMax),
    acceptedLatest: dateOf(nowMs + aheadMsMax),
  };
  const hasJobs = await bringJobsForward(database, times, rowsMax);
  const ofChannels = Object.values(channels).flatMap((channel) => channel.bringForward ?? []);
  for (const bring of [bringReportsForward, ...ofChannels, bringConversionsForward])
    await repeat(rowsMax, () => bring(database, times, rowsMax));
  if (hasJobs) await wakeOnce(database, 'deliveries');
}

/** As long as it fills a batch. Ends, since a row that was brought forward is not found again. */
async function repeat(rowsMax: number, bringBatch: () => Promise<readonly unknown[]>): Promise<void> {
  for (let statements = 0; statements < statementsMax; statements += 1) {
    const { length } = await bringBatch();
    if (length < rowsMax) break;
  }
}

const nobody = '00000000-0000-0000-0000-000000000000';

/** Returns whether there were any. */
async function bringJobsForward(database: Database, times: WaitingTimes, rowsMax: number): Promise<boolean> {
  let last: RecipientKey | undefined = { organizationId: nobody, messageId: nobody, ordinal: 0 };
  let isAny = false;
  for (let batches = 0; batches < statementsMax && last !== undefined; batches += 1) {
    const after: RecipientKey = last;
    const jobs: WaitingJob[] = await database.transactionByIndex((transaction) =>
      bringBatchForward(transaction, times, { after, rowsMax }),
    );
    last = jobs.at(-1);
    isAny ||= jobs.some(({ isAhead }) => isAhead);
  }
  return isAny;
}

/** Returns all jobs that were read. */
async function bringBatchForward(
  transaction: Transaction,
  times: WaitingTimes,
  page: { after: RecipientKey; rowsMax: number },
): Promise<WaitingJob[]> {
  const jobs = await listWaitingAfter(transaction, times, page);
  const ahead = jobs.filter(({ isAhead }) => isAhead);
  if (ahead.length > 0) await makeDue(transaction, ahead, times.at);
  return jobs;
}
