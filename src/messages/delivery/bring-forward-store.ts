import { channels } from '../../channels/channel.ts';
import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import type { BringForward } from '../channel.ts';
import { keyColumns, type RecipientKey, recipientKey, toKey } from '../keys.ts';

/** Jobs later than `dueLatest` or `acceptedLatest` were dated while the clock was ahead, and are made due at `at`. */
export type WaitingTimes = { at: Date; dueLatest: Date; acceptedLatest: Date };

export type WaitingJob = RecipientKey & { isAhead: boolean };

type KeyRow = { organization_id: string; message_id: string; ordinal: number };

/** A bitmap scan has no order: all rows after the key would be read and sorted for each batch. */
const withoutBitmaps = unpreparedStatement("select set_config('enable_bitmapscan', 'off', true)");

/** Claimed rows are left to their worker, which uses the present clock. Reads by the primary key. */
const jobsAfter = unpreparedStatement<KeyRow & { is_ahead: boolean }>(
  `select organization_id, message_id, ordinal,
     claimed_by is null and set_aside_at is null
       -- A time that somebody has chosen is none of a clock; only a pause beyond it is.
       and (case when is_cancellable then due_at > greatest($1, accepted_at) else accepted_at > $2 or due_at > $1 end)
       as is_ahead
   from delivery_queue
   where (organization_id, message_id, ordinal) > ($4, $5, $6)
   order by organization_id, message_id, ordinal
   limit $3`,
);

/** So many jobs of the queue after this one, in the order of their keys. */
export async function listWaitingAfter(
  transaction: Connection,
  { dueLatest, acceptedLatest }: WaitingTimes,
  { after, rowsMax }: { after: RecipientKey; rowsMax: number },
): Promise<WaitingJob[]> {
  await transaction.rows(withoutBitmaps);
  const rows = await transaction.rows(jobsAfter, [
    dueLatest,
    acceptedLatest,
    rowsMax,
    after.organizationId,
    after.messageId,
    after.ordinal,
  ]);
  return rows.map((row) => ({ ...toKey(row), isAhead: row.is_ahead }));
}

/**
 * By the primary key. Competes with claims, and skips what they have, or have had meanwhile: as a function of the two
 * columns, or else PostgreSQL would read the index of all that nobody has claimed.
 */
const jobsForward = unpreparedStatement(
  `with ahead as (
     select q.organization_id, q.message_id, q.ordinal
     from unnest($1::uuid[], $2::uuid[], $3::integer[]) as found (organization_id, message_id, ordinal)
     join delivery_queue q on ${hasKeyOf('q', 'found', recipientKey)}
     for update of q skip locked
   )
   update delivery_queue q
   set due_at = case when q.is_cancellable then greatest(q.accepted_at, $4) else $4 end,
     accepted_at = case when q.is_cancellable then q.accepted_at else least(q.accepted_at, $4) end
   from ahead
   where ${hasKeyOf('q', 'ahead', recipientKey)} and num_nulls(q.claimed_by, q.set_aside_at) = 2`,
);

/** Those of the jobs that nobody has claimed meanwhile. */
export async function makeDue(
  transaction: Connection,
  jobs: readonly RecipientKey[],
  at: Date,
): Promise<void> {
  await transaction.rows(jobsForward, [...keyColumns(jobs), at]);
}

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

/** Reports of providers that are put back, as `BringForward` says. */
export const bringReportsForward: BringForward = (connection, { at, dueLatest }, rowsMax) =>
  connection.rows(providerEventsForward, [at, dueLatest, rowsMax, channels]);

/** The same of a channel's own table of events, which has the columns `id` and `due_at` and an index that begins with the latter. */
export function bringEventsForward(table: string): BringForward {
  const eventsForward = unpreparedStatement<{ is_forward: boolean }>(
    `with ahead as (
       select id
       from ${table}
       where due_at > $2
       limit $3
       for update skip locked
     )
     update ${table} e
     set due_at = $1
     from ahead
     where e.id = ahead.id
     returning true as is_forward`,
  );
  return (connection, { at, dueLatest }, rowsMax) => connection.rows(eventsForward, [at, dueLatest, rowsMax]);
}
