import type { InboundSms, SmsReceipt } from '../channels/sms/sms.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import type { RecipientKey } from '../messages/messages.ts';

/** An event from a provider that is not applied yet. */
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

/** Takes due events of a kind, in the order in which they came. Events that are not applied must be put back. */
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

/** Planned at each run: a plan made for an empty partition would read all recipients of the organization. */
const selectUncertain = unpreparedStatement<{
  position: number;
  organization_id: string;
  message_id: string;
  ordinal: number;
}>(
  `select wanted.position, cut_off.organization_id, cut_off.message_id, cut_off.ordinal
   from unnest($1::text[], $2::text[]) with ordinality as wanted (number, sender, position)
   join senders s on s.name = wanted.sender
   cross join lateral (
     select r.organization_id, r.message_id, r.ordinal
     from recipients r
     join messages m on m.organization_id = r.organization_id and m.id = r.message_id
     where r.organization_id = s.organization_id and r.address_key = wanted.number and r.uncertain
       and r.handed_off_at >= $3 and m.sender = wanted.sender
     limit 2
   ) cut_off`,
);

/**
 * The hand-offs from a sender to a number that were cut off since the given time, by the index of the question. They
 * may be of any organization, since several may share a sender's name. At most two for each question. Uses the index
 * recipients_address.
 */
export async function findUncertain(
  connection: Connection,
  wanted: readonly { number: string; sender: string }[],
  since: Date,
): Promise<Map<number, RecipientKey[]>> {
  const rows = await connection.rows(selectUncertain, [
    wanted.map(({ number }) => number),
    wanted.map(({ sender }) => sender),
    since,
  ]);
  const jobs = new Map<number, RecipientKey[]>();
  for (const { position, organization_id: organizationId, message_id: messageId, ordinal } of rows) {
    const job = { organizationId, messageId, ordinal };
    jobs.set(position - 1, [...(jobs.get(position - 1) ?? []), job]);
  }
  return jobs;
}
