import { type Connection, statement, unpreparedStatement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { dueInTurns } from '../../platform/queue/turns.ts';
import { fateOfRecipient, type RecipientFate } from '../status.ts';
import type { MessageKey } from '../keys.ts';

const insertAll = statement(
  'recipient_changes_insert',
  `insert into recipient_changes (organization_id, id, message_id, slices)
   select changed.organization_id, changed.id, changed.message_id, array_agg(changed.slice)
   from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::integer[])
     as changed (organization_id, id, message_id, slice)
   join messages m on ${hasKeyOf('m', 'changed', [['id', 'message_id']])}
   where m.class = 'campaign'
   group by changed.organization_id, changed.id, changed.message_id`,
);

export type Slice = MessageKey & { slice: number };

/** `id` is that of the change. If a change names several slices, each has the same id. */
export type ChangedSlice = Slice & { id: string };

export async function insertChanges(connection: Connection, changes: readonly ChangedSlice[]): Promise<void> {
  await connection.rows(insertAll, [
    changes.map(({ organizationId }) => organizationId),
    changes.map(({ id }) => id),
    changes.map(({ messageId }) => messageId),
    changes.map(({ slice }) => slice),
  ]);
}

type TakenRow = { changes: number; organization_id: string; message_id: string; slice: number; id: string };

const takeAll = statement<TakenRow>(
  'recipient_changes_take',
  `with recursive ${dueInTurns({
    table: 'recipient_changes',
    of: 'organization_id',
    columns: ['organization_id', 'id'],
    order: ['id'],
    limit: '$1',
  })}, gone as (
     delete from recipient_changes c
     using due
     where c.organization_id = due.organization_id and c.id = due.id
     returning c.organization_id, c.id, c.message_id, c.slices
   ), changed as (
     select distinct on (organization_id, message_id, slice) organization_id, message_id, slice, id
     from gone
     cross join lateral unnest(slices) as slice
     order by organization_id, message_id, slice, id
   )
   select (select count(*) from gone) as changes, organization_id, message_id, slice, id
   from changed
   order by row_number() over (partition by organization_id order by id), id`,
);

/**
 * Takes the oldest changes of each organization, by the primary key, and returns the slices that they name: each once,
 * with the oldest change that names it. Since not all may be counted, organizations take turns here too, and the oldest
 * slices of each come first. In any other order some slices would wait for as long as others keep changing.
 */
export async function takeChanges(
  connection: Connection,
  changesMax: number,
): Promise<{ changes: number; slices: ChangedSlice[] }> {
  const rows = await connection.rows(takeAll, [changesMax]);
  const slices = rows.map((row) => ({
    organizationId: row.organization_id,
    messageId: row.message_id,
    slice: row.slice,
    id: row.id,
  }));
  return { changes: rows[0]?.changes ?? 0, slices };
}

const insertMissing = statement(
  'recipient_counts_insert_missing',
  `insert into recipient_counts (organization_id, message_id, slice)
   select organization_id, message_id, slice
   from unnest($1::uuid[], $2::uuid[], $3::integer[]) as wanted (organization_id, message_id, slice)
   order by organization_id, message_id, slice
   on conflict do nothing`,
);

const lockAll = statement(
  'recipient_counts_lock',
  `select
   from recipient_counts n
   join unnest($1::uuid[], $2::uuid[], $3::integer[]) as wanted (organization_id, message_id, slice)
     on ${hasKeyOf('n', 'wanted', ['message_id', 'slice'])}
   order by wanted.organization_id, wanted.message_id, wanted.slice
   for update of n`,
);

/** Locked in their order, so that two transactions cannot deadlock. */
export async function lockCounts(connection: Connection, slices: readonly Slice[]): Promise<void> {
  const values = sliceColumns(slices);
  await Promise.all([connection.rows(insertMissing, values), connection.rows(lockAll, values)]);
}

function countOf(...fates: RecipientFate[]): string {
  return `coalesce(sum(recipients) filter (where fate in (${fates.map((fate) => `'${fate}'`).join(', ')})), 0)`;
}

/**
 * Counts recipients that were written to. A complaint or an unsubscription implies that the message arrived. An open
 * has a column of its own, since a later status replaces the status `opened`. A slice without recipients is left as it was
 * counted: they were too old to be kept, and the statistics of their campaign stay.
 */
const recountAll = statement(
  'recipient_counts_recount',
  `update recipient_counts n
   set handed_off = fresh.handed_off, delayed = fresh.delayed, delivered = fresh.delivered, bounced = fresh.bounced,
     failed = fresh.failed, complained = fresh.complained, unsubscribed = fresh.unsubscribed,
     opened = fresh.opened, clicked = fresh.clicked, dropped = fresh.dropped, uncertain = fresh.uncertain,
     unconfirmed = fresh.unconfirmed, fates = fresh.fates
   from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::integer[], $6::integer[])
     as wanted (organization_id, message_id, slice, first_ordinal, end_ordinal)
   cross join lateral (
     select
       coalesce(sum(recipients), 0) as recipients,
       coalesce(sum(handed_off), 0) as handed_off,
       ${countOf('delayed')} as delayed,
       ${countOf('delivered', 'opened', 'clicked', 'complained', 'unsubscribed')} as delivered,
       ${countOf('bounced')} as bounced,
       ${countOf('failed')} as failed,
       ${countOf('complained')} as complained,
       ${countOf('unsubscribed')} as unsubscribed,
       coalesce(sum(opened), 0) as opened,
       coalesce(sum(clicked), 0) as clicked,
       ${countOf('dropped')} as dropped,
       coalesce(sum(uncertain), 0) as uncertain,
       ${countOf('sent')} - coalesce(sum(uncertain), 0) as unconfirmed,
       coalesce(
         jsonb_object_agg(fate, case when recipients <= $5 then to_jsonb(ordinals) else to_jsonb(recipients) end),
         '{}'
       ) as fates
     from (
       select ${fateOfRecipient} as fate, count(*) as recipients, array_agg(ordinal) as ordinals,
         count(handed_off_at) as handed_off, count(opened_at) as opened, count(clicked_at) as clicked,
         count(*) filter (where uncertain and status in ('sent', 'delayed')) as uncertain
       from recipients r
       where ${hasKeyOf('r', 'wanted', ['message_id'])}
         and r.ordinal >= wanted.first_ordinal
         and r.ordinal < wanted.end_ordinal
       group by fate
     ) by_fate
   ) fresh
   where ${hasKeyOf('n', 'wanted', ['message_id', 'slice'])} and fresh.recipients > 0`,
);

export async function recount(
  connection: Connection,
  slices: readonly Slice[],
  { sliceSize, ordinalsMax }: { sliceSize: number; ordinalsMax: number },
): Promise<void> {
  await connection.rows(recountAll, [
    ...sliceColumns(slices),
    slices.map(({ slice }) => slice * sliceSize),
    ordinalsMax,
    slices.map(({ slice }) => (slice + 1) * sliceSize),
  ]);
}

function sliceColumns(slices: readonly Slice[]): [string[], string[], number[]] {
  return [
    slices.map(({ organizationId }) => organizationId),
    slices.map(({ messageId }) => messageId),
    slices.map(({ slice }) => slice),
  ];
}

const selectHandedOff = statement(
  'recipient_counts_select_handed_off',
  `select
   from recipient_counts
   where organization_id = $1 and message_id = $2 and handed_off > 0
   limit 1`,
);

/** Whether the message was handed off to any recipient, according to the counts. */
export async function hasHandedOff(connection: Connection, message: MessageKey): Promise<boolean> {
  const rows = await connection.rows(selectHandedOff, [message.organizationId, message.messageId]);
  return rows.length > 0;
}

/**
 * A campaign's recipients by fate. A recipient that is done is counted in exactly one of `delivered` (including those
 * who opened, clicked, complained or unsubscribed afterwards), `bounced`, `failed`, `dropped`, `uncertain` and
 * `unconfirmed` (the provider has taken the message and reported nothing since). The other fields count in addition.
 */
export type RecipientSums = {
  handedOff: number;
  delayed: number;
  delivered: number;
  bounced: number;
  failed: number;
  complained: number;
  unsubscribed: number;
  opened: number;
  clicked: number;
  dropped: number;
  uncertain: number;
  unconfirmed: number;
};

/** By message id, found by the primary key. Messages without counts are missing. */
export async function sumRecipientCounts(
  connection: Connection,
  organizationId: string,
  messageIds: readonly string[],
): Promise<Map<string, RecipientSums>> {
  if (messageIds.length === 0) return new Map();
  const rows = await connection.rows(
    unpreparedStatement<RecipientSums & { message_id: string }>(
      `select message_id, sum(handed_off) as "handedOff", sum(delayed) as delayed, sum(delivered) as delivered,
         sum(bounced) as bounced, sum(failed) as failed, sum(complained) as complained,
         sum(unsubscribed) as unsubscribed, sum(opened) as opened, sum(clicked) as clicked, sum(dropped) as dropped,
         sum(uncertain) as uncertain, sum(unconfirmed) as unconfirmed
       from recipient_counts
       where organization_id = $1 and message_id = any ($2::uuid[])
       group by message_id`,
    ),
    [organizationId, messageIds],
  );
  return new Map(rows.map(({ message_id: messageId, ...sums }) => [messageId, sums]));
}

const selectUncounted = statement(
  'recipient_changes_select_uncounted',
  'select from recipient_changes where organization_id = $1 and message_id = $2 limit 1',
);

/** Whether recipients of a campaign have changed since they were counted. Reads the changes of all campaigns. */
export async function hasUncounted(connection: Connection, message: MessageKey): Promise<boolean> {
  const rows = await connection.rows(selectUncounted, [message.organizationId, message.messageId]);
  return rows.length > 0;
}
