import type { ToldOfChatApp } from '../channels/chatapp/provider.ts';
import { type Connection, statement } from '../platform/postgres/database.ts';

/** What is told besides the statuses of messages. As JSON has it: times are texts. */
export type ToldBesides = Exclude<ToldOfChatApp, { kind: 'status' }>;

/** What was told of an organization and is not applied yet. */
export type ChatAppEvent = { id: string; attempts: number; event: ToldBesides & { organizationId: string } };

const insertAll = statement(
  'chat_app_events_insert',
  `insert into chat_app_events (id, event, due_at, attempts)
   select id, event::json, due_at, attempts
   from unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::smallint[]) as told (id, event, due_at, attempts)`,
);

export async function insertChatAppEvents(
  connection: Connection,
  events: readonly (ChatAppEvent & { dueAt: Date })[],
): Promise<void> {
  if (events.length === 0) return;
  await connection.rows(insertAll, [
    events.map(({ id }) => id),
    events.map(({ event }) => JSON.stringify(event)),
    events.map(({ dueAt }) => dueAt),
    events.map(({ attempts }) => attempts),
  ]);
}

const takeAll = statement<ChatAppEvent>(
  'chat_app_events_take',
  `with due as (
     select id
     from chat_app_events
     where due_at <= $1
     order by due_at, id
     limit $2
     for update skip locked
   ), taken as (
     delete from chat_app_events e
     using due
     where e.id = due.id
     returning e.*
   )
   select id, event, attempts from taken order by id`,
);

/** Takes due events in the order in which they came. Those that are not applied must be put back. */
export async function takeDueChatAppEvents(
  connection: Connection,
  at: Date,
  eventsMax: number,
): Promise<ChatAppEvent[]> {
  return connection.rows(takeAll, [at, eventsMax]);
}

const selectNext = statement<{ due_at: Date }>(
  'chat_app_events_next',
  'select due_at from chat_app_events order by due_at limit 1',
);

export async function findNextChatAppEventAt(connection: Connection): Promise<Date | null> {
  const [row] = await connection.rows(selectNext);
  return row?.due_at ?? null;
}
