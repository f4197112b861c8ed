import {
  type Connection,
  statement,
  type Transaction,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import { organizationsDue } from '../platform/queue/turns.ts';
import { firstPlaceOf } from './event-id.ts';
import type { CampaignEvents, EventType } from './event-types.ts';
import type { EventRow } from './log-store.ts';
import type { EventFormat } from './schema.ts';
import type { WebhookKey } from './store.ts';

/** An endpoint, and how far it was told. */
export type Endpoint = {
  id: string;
  status: 'enabled' | 'paused' | 'disabled';
  url: string;
  events: string[];
  campaign_events: CampaignEvents;
  format: EventFormat;
  secrets_sealed: Buffer;
  headers: Record<string, string>;
  concurrency: number;
  next_position: number;
  rounds: number;
  failures: number;
  failing_since: Date | null;
  /** When it is tried again, or what it did not take; null where neither is to be. */
  next_try_at: Date | null;
  last_success_at: Date | null;
};

/** What an endpoint did not take, and what is known of it. */
export type Delivery = { eventId: string; position: number; attempts: number };

const selectUntold = statement<{ organization_id: string }>(
  'webhook_positions_find_untold',
  organizationsDue({ table: 'webhook_positions', among: 'is_untold', due: '$1::timestamptz is not null' }),
);

const selectRetrying = statement<{ organization_id: string }>(
  'webhook_cursors_find_due',
  organizationsDue({
    table: 'webhook_cursors',
    among: 'next_try_at is not null',
    due: 'next_try_at <= $1',
  }),
);

/** Organizations with an endpoint that may have something to be told, after the one given, in the order of their ids. */
export async function findUntold(
  connection: Connection,
  { at, after, limit }: { at: Date; after: string | null; limit: number },
): Promise<string[]> {
  const found = await Promise.all(
    [selectUntold, selectRetrying].map((select) => connection.rows(select, [at, after, limit])),
  );
  const ids = new Set(found.flat().map((row) => row.organization_id));
  return [...ids].sort().slice(0, limit);
}

/** When the next attempt is due of what has failed, after an instant. */
export async function findNextAttempt(connection: Connection, after: Date): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ next_at: Date }>(
      'select next_try_at as next_at from webhook_cursors where next_try_at > $1 order by next_try_at limit 1',
    ),
    [after],
  );
  return row?.next_at ?? null;
}

/** Endpoints of an organization that have something to be told now. */
export async function listUntold(
  connection: Connection,
  organizationId: string,
  at: Date,
): Promise<{ id: string }[]> {
  return connection.rows(
    unpreparedStatement<{ id: string }>(
      `select w.id
       from webhooks w
       join webhook_cursors c on c.organization_id = w.organization_id and c.webhook_id = w.id
       where w.organization_id = $1 and w.kind = 'url' and w.status = 'enabled'
         and (c.next_try_at <= $2 or (
           c.failing_since is null
             and c.next_position <= coalesce((select last_position from webhook_positions where organization_id = $1), 0)
         ))
       order by w.id`,
    ),
    [organizationId, at],
  );
}

/** Notes that all endpoints were told of all, unless something was numbered, or an endpoint enabled, meanwhile. */
export async function noteAllTold(transaction: Transaction, organizationId: string): Promise<void> {
  // By a statement of its own: one that waits for the row sees the endpoints as they were before it waited.
  await transaction.rows(
    unpreparedStatement('select from webhook_positions where organization_id = $1 for update'),
    [organizationId],
  );
  await transaction.rows(
    unpreparedStatement(
      `update webhook_positions p
       set is_untold = false
       where p.organization_id = $1 and p.is_untold and not exists (
         select
         from webhook_cursors c
         join webhooks w on w.organization_id = c.organization_id and w.id = c.webhook_id
         where c.organization_id = $1 and w.status = 'enabled' and c.failing_since is null
           and c.next_position <= p.last_position
       )`,
    ),
    [organizationId],
  );
}

/** Has the endpoints of an organization looked at again: one may have something to be told that had not. */
export async function noteUntold(connection: Connection, organizationId: string): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into webhook_positions (organization_id, is_untold) values ($1, true)
       on conflict (organization_id) do update set is_untold = true`,
    ),
    [organizationId],
  );
}

/** SQL: an endpoint `w` with its cursor `c`. */
const endpointColumns = `w.id, w.status, w.url, w.events, w.campaign_events, w.format, w.secrets_sealed, w.headers, w.concurrency,
  c.next_position, c.rounds, c.failures, c.failing_since, c.next_try_at, c.last_success_at`;

/** Null where it is told nothing: it is paused, disabled or gone. */
export async function findEndpoint(
  connection: Connection,
  { organizationId, id }: WebhookKey,
): Promise<Endpoint | null> {
  const [row] = await connection.rows(
    statement<Endpoint>(
      'webhook_cursors_find',
      `select ${endpointColumns}
       from webhooks w
       join webhook_cursors c on c.organization_id = w.organization_id and c.webhook_id = w.id
       where w.organization_id = $1 and w.id = $2 and w.kind = 'url' and w.status = 'enabled'`,
    ),
    [organizationId, id],
  );
  return row ?? null;
}

/** What is to be tried again by then, what is due longest first: a walk over `webhook_deliveries_due`. */
export async function listDue(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  { at, limit }: { at: Date; limit: number },
): Promise<Delivery[]> {
  return connection.rows(
    unpreparedStatement<Delivery>(
      `select event_id as "eventId", position, attempts
       from webhook_deliveries
       where organization_id = $1 and webhook_id = $2 and due_at <= $3
       order by due_at, position
       limit $4`,
    ),
    [organizationId, id, at, limit],
  );
}

/** What is to be tried again, whenever that is, the oldest first: a walk over `webhook_deliveries_unsettled`. */
export async function listRetrying(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  limit: number,
): Promise<Delivery[]> {
  return connection.rows(
    unpreparedStatement<Delivery>(
      `select event_id as "eventId", position, attempts
       from webhook_deliveries
       where organization_id = $1 and webhook_id = $2 and status = 'retrying'
       order by position
       limit $3`,
    ),
    [organizationId, id, limit],
  );
}

/** The rows of the log in which these events are, as far as they are kept. */
export async function findRowsOf(
  connection: Connection,
  organizationId: string,
  events: readonly Pick<Delivery, 'eventId' | 'position'>[],
): Promise<EventRow[]> {
  const firsts = events.map(({ eventId, position }) => firstPlaceOf(eventId, position));
  return connection.rows(
    unpreparedStatement<EventRow>(
      `select distinct on (e.position) e.position, e.id, e.events, e.type, e.happened_at, e.of_campaign, e.subject_ids,
         e.ordinals, e.facts
       from unnest($2::uuid[], $3::bigint[]) as wanted (id, position)
       join webhook_events e on e.organization_id = $1 and e.position = wanted.position and e.id = wanted.id
       order by e.position`,
    ),
    [organizationId, firsts.map(({ rowId }) => rowId), firsts.map(({ position }) => position)],
  );
}

/** An attempt, and what it says of the delivery: `dueAt` of those that are tried again. */
export type ConcludedAttempt = {
  eventId: string;
  position: number;
  type: EventType;
  deliveryStatus: 'retrying' | 'delivered' | 'failed';
  /** How many there were, this one counted. */
  attempt: number;
  dueAt: Date | null;
  at: Date;
  status: number | null;
  ms: number;
  message: string | null;
  answer: string;
};

export async function saveAttempts(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  attempts: readonly ConcludedAttempt[],
): Promise<void> {
  if (attempts.length === 0) return;
  const columns = [
    organizationId,
    id,
    attempts.map(({ eventId }) => eventId),
    attempts.map(({ attempt }) => attempt),
    attempts.map(({ at }) => at),
  ];
  await Promise.all([
    connection.rows(
      statement(
        'webhook_deliveries_save',
        `insert into webhook_deliveries
           (organization_id, webhook_id, event_id, position, type, status, attempts, due_at, updated_at)
         select $1, $2, event_id, position, type, status, attempts, due_at, updated_at
         from unnest($3::uuid[], $4::smallint[], $5::timestamptz[], $6::bigint[], $7::text[], $8::text[], $9::timestamptz[])
           as given (event_id, attempts, updated_at, position, type, status, due_at)
         on conflict (organization_id, webhook_id, event_id) do update
         set status = excluded.status, attempts = excluded.attempts, due_at = excluded.due_at,
           updated_at = excluded.updated_at`,
      ),
      [
        ...columns,
        attempts.map(({ position }) => position),
        attempts.map(({ type }) => type),
        attempts.map(({ deliveryStatus }) => deliveryStatus),
        attempts.map(({ dueAt }) => dueAt),
      ],
    ),
    connection.rows(
      statement(
        'webhook_attempts_save',
        `insert into webhook_attempts
           (organization_id, webhook_id, event_id, attempt, at, status, ms, message, answer)
         select $1, $2, event_id, attempt, at, status, ms, message, answer
         from unnest($3::uuid[], $4::smallint[], $5::timestamptz[], $6::smallint[], $7::integer[], $8::text[], $9::text[])
           as given (event_id, attempt, at, status, ms, message, answer)
         on conflict do nothing`,
      ),
      [
        ...columns,
        attempts.map(({ status }) => status),
        attempts.map(({ ms }) => ms),
        attempts.map(({ message }) => message),
        attempts.map(({ answer }) => answer),
      ],
    ),
  ]);
}

/** How far an endpoint was told, and how it does. */
export type Progress = {
  /** The rounds that were written when this one was read. */
  rounds: number;
  nextPosition: number;
  failures: number;
  failingSince: Date | null;
  /** Null unless it fails. */
  nextTryAt: Date | null;
  lastSuccessAt: Date | null;
  /** The last failure; null if there was none. */
  failure: { at: Date; status: number | null; message: string } | null;
};

/**
 * Returns the endpoint as it is then; null if it was not written: the webhook is not there any more, or somebody was before.
 * Whatever else is written of an endpoint in the same transaction comes after this, or after `lockCursor`.
 */
export async function saveProgress(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  progress: Progress,
): Promise<Endpoint | null> {
  const [saved] = await connection.rows(
    statement<Endpoint>(
      'webhook_cursors_save',
      `update webhook_cursors c
       set rounds = rounds + 1, next_position = $4, failures = $5, failing_since = $6,
         next_try_at = coalesce($7::timestamptz, next_try_at),
         last_success_at = coalesce($8::timestamptz, last_success_at),
         last_failure_at = coalesce($9::timestamptz, last_failure_at),
         last_failure_status = case when $9::timestamptz is null then last_failure_status else $10 end,
         last_failure_message = coalesce($11, last_failure_message)
       from webhooks w
       where c.organization_id = $1 and c.webhook_id = $2 and c.rounds = $3 and w.organization_id = $1 and w.id = $2
       returning ${endpointColumns}`,
    ),
    [
      organizationId,
      id,
      progress.rounds,
      progress.nextPosition,
      progress.failures,
      progress.failingSince,
      progress.nextTryAt,
      progress.lastSuccessAt,
      progress.failure?.at ?? null,
      progress.failure?.status ?? null,
      progress.failure?.message ?? null,
    ],
  );
  return saved ?? null;
}

/** Locks the cursor of an endpoint: whoever changes when it is tried again does so first, and sees what others did. */
export async function lockCursor(
  transaction: Transaction,
  { organizationId, id }: WebhookKey,
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      'select from webhook_cursors where organization_id = $1 and webhook_id = $2 for no key update',
    ),
    [organizationId, id],
  );
}

/**
 * Makes the next try of an endpoint that of what it did not take. One that fails keeps its own; one that is told nothing has
 * none, or it would be looked at again and again. The cursor is locked. Returns when that is.
 */
export async function refreshNextTry(
  transaction: Transaction,
  { organizationId, id }: WebhookKey,
): Promise<Date | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ next_try_at: Date | null }>(
      `update webhook_cursors c
       set next_try_at = case
         when not exists (
           select from webhooks w where w.organization_id = $1 and w.id = $2 and w.status = 'enabled'
         ) then null
         when c.failing_since is not null then c.next_try_at
         else (
           select min(d.due_at)
           from webhook_deliveries d
           where d.organization_id = $1 and d.webhook_id = $2 and d.due_at is not null
         )
       end
       where c.organization_id = $1 and c.webhook_id = $2
       returning c.next_try_at`,
    ),
    [organizationId, id],
  );
  return row?.next_try_at ?? null;
}

/** Has an endpoint looked at by then, unless it fails, and is tried at its own time. The cursor is locked. */
export async function tryBy(
  transaction: Transaction,
  { organizationId, id }: WebhookKey,
  at: Date,
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `update webhook_cursors c
       set next_try_at = least(c.next_try_at, $3)
       where c.organization_id = $1 and c.webhook_id = $2 and c.failing_since is null and exists (
         select from webhooks w where w.organization_id = $1 and w.id = $2 and w.status = 'enabled'
       )`,
    ),
    [organizationId, id, at],
  );
}

/** Of what waits to be tried again, so much is hurried at once: the rest comes at its time, a day later at most. */
const hurriedMax = 1_000;

/** What has failed is tried again at once, the oldest of it: the endpoint takes events again. */
export async function retryNow(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update webhook_deliveries d
       set due_at = $3
       from (
         select event_id
         from webhook_deliveries
         where organization_id = $1 and webhook_id = $2 and status = 'retrying'
         order by position
         limit $4
       ) oldest
       where d.organization_id = $1 and d.webhook_id = $2 and d.event_id = oldest.event_id and d.due_at > $3`,
    ),
    [organizationId, id, at, hurriedMax],
  );
}

export async function disableWebhook(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update webhooks set status = 'disabled', updated_at = $3
       where organization_id = $1 and id = $2 and status = 'enabled'`,
    ),
    [organizationId, id, at],
  );
}
