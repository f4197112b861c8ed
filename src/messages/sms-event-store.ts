import type { InboundSms, SmsReceipt } from '../channels/sms/sms.ts';
import { type Connection, statement } from '../platform/postgres/database.ts';
import type { JobKey } from './queue-store.ts';

/** What a provider told, until it has been applied. */
export type SmsEvent = { id: string; attempts: number } & (
  { kind: 'receipt'; event: SmsReceipt } | { kind: 'inbound'; event: InboundSms }
);

export type NewSmsEvent =
  { id: string; kind: 'receipt'; event: SmsReceipt } | { id: string; kind: 'inbound'; event: InboundSms };

const insertAll = statement(
  'sms_events_insert',
  `insert into sms_events (id, kind, event, due_at)
   select id, kind, event::json, $4
   from unnest($1::uuid[], $2::text[], $3::text[]) as told (id, kind, event)`,
);

export async function insertSmsEvents(
  connection: Connection,
  events: readonly NewSmsEvent[],
  at: Date,
): Promise<void> {
  await connection.rows(insertAll, [
    events.map(({ id }) => id),
    events.map(({ kind }) => kind),
    events.map(({ event }) => JSON.stringify(event)),
    at,
  ]);
}

const takeAll = statement<SmsEvent>(
  'sms_events_take',
  `with due as (
     select id
     from sms_events
     where kind = $3 and due_at <= $1
     order by due_at, id
     limit $2
     for update skip locked
   ), taken as (
     delete from sms_events e
     using due
     where e.id = due.id
     returning e.*
   )
   select id, kind, event, attempts from taken order by id`,
);

/** Takes events of a kind that are due, in the order in which they came; what is not applied must be put back. */
export async function takeDueSmsEvents(
  connection: Connection,
  kind: SmsEvent['kind'],
  at: Date,
  eventsMax: number,
): Promise<SmsEvent[]> {
  return connection.rows(takeAll, [at, eventsMax, kind]);
}

const putBack = statement(
  'sms_events_put_back',
  `insert into sms_events (id, kind, event, due_at, attempts)
   select id, kind, event::json, due_at, attempts
   from unnest($1::uuid[], $2::text[], $3::text[], $4::timestamptz[], $5::smallint[])
     as later (id, kind, event, due_at, attempts)`,
);

export async function putBackSmsEvents(
  connection: Connection,
  events: readonly (SmsEvent & { dueAt: Date })[],
): Promise<void> {
  if (events.length === 0) return;
  await connection.rows(putBack, [
    events.map(({ id }) => id),
    events.map(({ kind }) => kind),
    events.map(({ event }) => JSON.stringify(event)),
    events.map(({ dueAt }) => dueAt),
    events.map(({ attempts }) => attempts),
  ]);
}

const selectNext = statement<{ due_at: Date }>(
  'sms_events_next',
  `select due_at
   from (values ('receipt'), ('inbound')) as told (kind)
   cross join lateral (
     select due_at from sms_events e where e.kind = told.kind order by due_at limit 1
   ) first
   order by due_at
   limit 1`,
);

export async function findNextSmsEventAt(connection: Connection): Promise<Date | null> {
  const [row] = await connection.rows(selectNext);
  return row?.due_at ?? null;
}

const selectUncertain = statement<{ position: number }>(
  'recipients_select_uncertain',
  `select wanted.position
   from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::text[]) with ordinality
     as wanted (organization_id, message_id, ordinal, sender, position)
   join recipients r using (organization_id, message_id, ordinal)
   join messages m on m.organization_id = r.organization_id and m.id = r.message_id
   where r.uncertain and m.sender = wanted.sender`,
);

/** Those of the recipients, by index, whose hand-off was cut off and who were written to by that sender. */
export async function findUncertain(
  connection: Connection,
  wanted: readonly { job: JobKey; sender: string }[],
): Promise<Set<number>> {
  const rows = await connection.rows(selectUncertain, [
    wanted.map(({ job }) => job.organizationId),
    wanted.map(({ job }) => job.messageId),
    wanted.map(({ job }) => job.ordinal),
    wanted.map(({ sender }) => sender),
  ]);
  return new Set(rows.map(({ position }) => position - 1));
}
