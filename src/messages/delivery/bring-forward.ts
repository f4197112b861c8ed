import { channels } from '../../channels/channel.ts';
import { bringConversionsForward } from '../../events/events.ts';
import { dateOf, type Clock } from '../../platform/clock.ts';
import { type Database, type Transaction, unpreparedStatement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { wakeOnce } from '../../platform/queue/wake.ts';
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
  rowsMax = defaultRowsMax,
}: {
  database: Database;
  clock: Clock;
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
  const limits = [times.at, times.dueLatest, rowsMax];
  await repeat(rowsMax, () => database.rows(providerEventsForward, [...limits, channels]));
  await repeat(rowsMax, () => database.rows(smsEventsForward, limits));
  await repeat(rowsMax, () => bringConversionsForward(database, times, rowsMax));
  if (hasJobs) await wakeOnce(database, 'deliveries');
}

/** As long as it fills a batch. Ends, since a row that was brought forward is not found again. */
async function repeat(rowsMax: number, bringBatch: () => Promise<readonly unknown[]>): Promise<void> {
  for (let statements = 0; statements < statementsMax; statements += 1) {
    const { length } = await bringBatch();
    if (length < rowsMax) break;
  }
}

/** Jobs later than `dueLatest` or `acceptedLatest` were dated while the clock was ahead, and are made due at `at`. */
type Times = { at: Date; dueLatest: Date; acceptedLatest: Date };

type Key = { organization_id: string; message_id: string; ordinal: number };

const nobody = '00000000-0000-0000-0000-000000000000';

/** Returns whether there were any. */
async function bringJobsForward(database: Database, times: Times, rowsMax: number): Promise<boolean> {
  let last: Key | undefined = { organization_id: nobody, message_id: nobody, ordinal: 0 };
  let isAny = false;
  for (let batches = 0; batches < statementsMax && last !== undefined; batches += 1) {
    const after: Key = last;
    const jobs = await database.transactionByIndex((transaction) =>
      bringBatchForward(transaction, times, { after, rowsMax }),
    );
    last = jobs.at(-1);
    isAny ||= jobs.some(({ is_ahead }) => is_ahead);
  }
  return isAny;
}

/** Returns all jobs that were read. */
async function bringBatchForward(
  transaction: Transaction,
  { at, dueLatest, acceptedLatest }: Times,
  { after, rowsMax }: { after: Key; rowsMax: number },
): Promise<(Key & { is_ahead: boolean })[]> {
  await transaction.rows(withoutBitmaps);
  const jobs = await transaction.rows(jobsAfter, [
    dueLatest,
    acceptedLatest,
    rowsMax,
    after.organization_id,
    after.message_id,
    after.ordinal,
  ]);
  const ahead = jobs.filter(({ is_ahead }) => is_ahead);
  if (ahead.length > 0) {
    await transaction.rows(jobsForward, [
      at,
      ahead.map(({ organization_id }) => organization_id),
      ahead.map(({ message_id }) => message_id),
      ahead.map(({ ordinal }) => ordinal),
    ]);
  }
  return jobs;
}

/** A bitmap scan has no order: all rows after the key would be read and sorted for each batch. */
const withoutBitmaps = unpreparedStatement("select set_config('enable_bitmapscan', 'off', true)");

/** Claimed rows are left to their worker, which uses the present clock. Reads by the primary key. */
const jobsAfter = unpreparedStatement<Key & { is_ahead: boolean }>(
  `select organization_id, message_id, ordinal,
     claimed_by is null and set_aside_at is null and (accepted_at > $2 or due_at > $1) as is_ahead
   from delivery_queue
   where (organization_id, message_id, ordinal) > ($4, $5, $6)
   order by organization_id, message_id, ordinal
   limit $3`,
);

/**
 * By the primary key. Competes with claims, and skips what they have, or have had meanwhile: as a function of the two
 * columns, or else PostgreSQL would read the index of all that nobody has claimed.
 */
const jobsForward = unpreparedStatement(
  `with ahead as (
     select q.organization_id, q.message_id, q.ordinal
     from unnest($2::uuid[], $3::uuid[], $4::integer[]) as found (organization_id, message_id, ordinal)
     join delivery_queue q on ${hasKeyOf('q', 'found', ['message_id', 'ordinal'])}
     for update of q skip locked
   )
   update delivery_queue q
   set due_at = $1, accepted_at = least(q.accepted_at, $1)
   from ahead
   where ${hasKeyOf('q', 'ahead', ['message_id', 'ordinal'])} and num_nulls(q.claimed_by, q.set_aside_at) = 2`,
);

/** Also on channels that only newer nodes know. Uses the index provider_events_due. */
const providerEventsForward = unpreparedStatement<{ is_forward: boolean }>(
  `with ahead as (
     select e.id
     from unnest($4::text[]) as known (channel)
     join provider_events e using (channel)
     where e.due_at > $2
     limit $3
     for update of e skip locked
   )
   update provider_events e
   set due_at = $1
   from ahead
   where e.id = ahead.id
   returning true as is_forward`,
);

/** Uses the index sms_events_due. */
const smsEventsForward = unpreparedStatement<{ is_forward: boolean }>(
  `with ahead as (
     select id
     from sms_events
     where due_at > $2
     limit $3
     for update skip locked
   )
   update sms_events e
   set due_at = $1
   from ahead
   where e.id = ahead.id
   returning true as is_forward`,
);
