import type { ToldOfChatApp } from '../channels/chatapp/provider.ts';
import { bringEventsForward } from '../messages/messages.ts';
import { type Connection, statement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { dueInTurns } from '../platform/queue/turns.ts';

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

/**
 * By the index chat_app_events_turns: what is told of one that signs for itself, however much it is, delays no STOP of
 * another.
 */
const takeAll = statement<ChatAppEvent>(
  'chat_app_events_take',
  `with recursive ${dueInTurns({
    table: 'chat_app_events',
    of: 'organization_id',
    columns: ['id'],
    order: ['due_at', 'id'],
    due: 'due_at <= $1',
    limit: '$2',
  })}, taken as (
     delete from chat_app_events e
     using due
     where e.id = due.id
     returning e.*
   )
   select id, event, attempts from taken order by id`,
);

/**
 * Takes due events, those of each organization in the order in which they came. One node does so at a time. Those that are
 * not applied must be put back.
 */
export async function takeDueChatAppEvents(
  connection: Connection,
  at: Date,
  eventsMax: number,
): Promise<ChatAppEvent[]> {
  return connection.rows(takeAll, [at, eventsMax]);
}

const selectNext = statement<{ due_at: Date }>(
  'chat_app_events_next',
  `select due_at from chat_app_events where ${isNotDeleted('organization_id')} order by due_at limit 1`,
);

export async function findNextChatAppEventAt(connection: Connection): Promise<Date | null> {
  const [row] = await connection.rows(selectNext);
  return row?.due_at ?? null;
}

const countPutBack = statement<{ count: number }>(
  'chat_app_events_count_put_back',
  `select count(*)::integer as count
   from (
     select
     from chat_app_events
     where organization_id = $1 and attempts > 0
     limit $2
   ) put_back`,
);

/** How many events of an organization were put back, counting no further than `countMax`. */
export async function countPutBackEvents(
  connection: Connection,
  organizationId: string,
  countMax: number,
): Promise<number> {
  const [row] = await connection.rows(countPutBack, [organizationId, countMax]);
  return row?.count ?? 0;
}

/** By the index chat_app_events_due. */
export const bringChatAppEventsForward = bringEventsForward('chat_app_events');
