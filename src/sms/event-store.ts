import type { InboundSms } from '../channels/sms/sms.ts';
import { bringEventsForward } from '../messages/messages.ts';
import { type Connection, statement } from '../platform/postgres/database.ts';
import { dueInTurns } from '../platform/queue/turns.ts';

/** A text that came in and is not applied yet. */
export type SmsEvent = { id: string; attempts: number; event: InboundSms };

export type NewSmsEvent = { id: string; event: InboundSms };

const insertAll = statement(
  'sms_events_insert',
  `insert into sms_events (id, event, due_at)
   select id, event::json, $3
   from unnest($1::uuid[], $2::text[]) as told (id, event)`,
);

export async function insertSmsEvents(
  connection: Connection,
  events: readonly NewSmsEvent[],
  at: Date,
): Promise<void> {
  await connection.rows(insertAll, [
    events.map(({ id }) => id),
    events.map(({ event }) => JSON.stringify(event)),
    at,
  ]);
}

/** By the index sms_events_turns: whoever floods the number of one organization delays no STOP to another. */
const takeAll = statement<SmsEvent>(
  'sms_events_take',
  `with recursive ${dueInTurns({
    table: 'sms_events',
    of: 'sender_name',
    isOfOrganizations: false,
    columns: ['id'],
    order: ['due_at', 'id'],
    due: 'due_at <= $1',
    limit: '$2',
  })}, taken as (
     delete from sms_events e
     using due
     where e.id = due.id
     returning e.*
   )
   select id, event, attempts from taken order by id`,
);

/** Takes due texts, those to each number in the order in which they came. Those that are not applied must be put back. */
export async function takeDueSmsEvents(
  connection: Connection,
  at: Date,
  eventsMax: number,
): Promise<SmsEvent[]> {
  return connection.rows(takeAll, [at, eventsMax]);
}

const putBack = statement(
  'sms_events_put_back',
  `insert into sms_events (id, event, due_at, attempts)
   select id, event::json, due_at, attempts
   from unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::smallint[])
     as later (id, event, due_at, attempts)`,
);

export async function putBackSmsEvents(
  connection: Connection,
  events: readonly (SmsEvent & { dueAt: Date })[],
): Promise<void> {
  if (events.length === 0) return;
  await connection.rows(putBack, [
    events.map(({ id }) => id),
    events.map(({ event }) => JSON.stringify(event)),
    events.map(({ dueAt }) => dueAt),
    events.map(({ attempts }) => attempts),
  ]);
}

const selectNext = statement<{ due_at: Date }>(
  'sms_events_next',
  `select due_at from sms_events order by due_at limit 1`,
);

export async function findNextSmsEventAt(connection: Connection): Promise<Date | null> {
  const [row] = await connection.rows(selectNext);
  return row?.due_at ?? null;
}

/** By the index sms_events_due. */
export const bringTextsForward = bringEventsForward('sms_events');
