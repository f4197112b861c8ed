import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { organizationsDue } from '../platform/queue/turns.ts';
import type { AlertKind } from './kinds.ts';
import type { AlertProblem } from './schema.ts';

export type AlertSettings = { addresses: string[]; next_position: number };

export async function findSettings(
  connection: Connection,
  organizationId: string,
): Promise<AlertSettings | null> {
  const [row] = await connection.rows(
    unpreparedStatement<AlertSettings>(
      'select addresses, next_position from alert_settings where organization_id = $1',
    ),
    [organizationId],
  );
  return row ?? null;
}

/** Of two nodes one alerts at a time. */
export async function lockSettings(
  transaction: Connection,
  organizationId: string,
): Promise<AlertSettings | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<AlertSettings>(
      'select addresses, next_position from alert_settings where organization_id = $1 for update',
    ),
    [organizationId],
  );
  return row ?? null;
}

export async function insertSettings(
  connection: Connection,
  {
    organizationId,
    addresses,
    nextPosition,
    at,
  }: { organizationId: string; addresses: readonly string[]; nextPosition: number; at: Date },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into alert_settings (organization_id, addresses, next_position, updated_at)
       values ($1, $2, $3, $4)`,
    ),
    [organizationId, addresses, nextPosition, at],
  );
}

export async function saveAddresses(
  connection: Connection,
  { organizationId, addresses, at }: { organizationId: string; addresses: readonly string[]; at: Date },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      'update alert_settings set addresses = $2, updated_at = $3 where organization_id = $1',
    ),
    [organizationId, addresses, at],
  );
}

/** With all that was to be told. */
export async function deleteSettings(connection: Connection, organizationId: string): Promise<void> {
  await connection.rows(unpreparedStatement('delete from alert_settings where organization_id = $1'), [
    organizationId,
  ]);
  await connection.rows(unpreparedStatement('delete from alerts where organization_id = $1'), [
    organizationId,
  ]);
  await connection.rows(unpreparedStatement('delete from alert_watches where organization_id = $1'), [
    organizationId,
  ]);
}

export async function savePosition(
  connection: Connection,
  organizationId: string,
  nextPosition: number,
): Promise<void> {
  await connection.rows(
    unpreparedStatement('update alert_settings set next_position = $2 where organization_id = $1'),
    [organizationId, nextPosition],
  );
}

const selectDue = statement<{ organization_id: string }>(
  'alerts_find_due',
  organizationsDue({ table: 'alerts', among: 'due_at is not null', due: 'due_at <= $1' }),
);

const selectWatched = statement<{ organization_id: string }>(
  'alert_watches_find_due',
  organizationsDue({ table: 'alert_watches', due: 'due_at <= $1' }),
);

/** Organizations that are to be told something, or of which an endpoint may have failed for long, after the one given. */
export async function findDue(
  connection: Connection,
  { at, after, limit }: { at: Date; after: string | null; limit: number },
): Promise<string[]> {
  const found = await Promise.all(
    [selectDue, selectWatched].map((select) => connection.rows(select, [at, after, limit])),
  );
  return found.flat().map((row) => row.organization_id);
}

/** When the next of these is due, after an instant. */
export async function findNextDue(connection: Connection, after: Date): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ next_at: Date | null }>(
      `select least(
         (select due_at from alerts where due_at > $1 order by due_at limit 1),
         (select due_at from alert_watches where due_at > $1 order by due_at limit 1)
       ) as next_at`,
    ),
    [after],
  );
  return row?.next_at ?? null;
}

/** An event as it waits to be told: what is read of the log. */
export type NotedEvent = {
  id: string;
  position: number;
  atMs: number;
  subjectId: string;
  facts: object | null;
};

/** What has happened of a kind, the newest first, of which no more are kept than are told of. */
export type Noted = { kind: AlertKind; count: number; since: Date; newest: readonly NotedEvent[] };

/**
 * Adds what has happened to what waits, which is due at once, or an hour after the last alert of its kind. What could not be
 * sent is tried again: something has changed.
 */
export async function noteAlerts(
  connection: Connection,
  {
    organizationId,
    noted,
    at,
    pauseMs,
    newestMax,
  }: {
    organizationId: string;
    noted: readonly Noted[];
    at: Date;
    pauseMs: number;
    newestMax: number;
  },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into alerts as a (organization_id, kind, waiting, waiting_since, newest, due_at)
       select $1, kind, waiting, since, newest, $6
       from unnest($2::text[], $3::bigint[], $4::timestamptz[], $5::json[]) as noted (kind, waiting, since, newest)
       order by kind
       on conflict (organization_id, kind) do update
       set waiting = a.waiting + excluded.waiting,
         waiting_since = coalesce(a.waiting_since, excluded.waiting_since),
         newest = (
           select json_agg(each.event order by each.place)
           from (
             select event, place
             from json_array_elements((excluded.newest::jsonb || a.newest::jsonb)::json)
               with ordinality as kept (event, place)
             order by place
             limit $8
           ) each
         ),
         due_at = coalesce(a.due_at, greatest(excluded.due_at, a.last_told_at + $7 * interval '1 millisecond'))`,
    ),
    [
      organizationId,
      noted.map(({ kind }) => kind),
      noted.map(({ count }) => count),
      noted.map(({ since }) => since),
      noted.map(({ newest }) => JSON.stringify(newest)),
      at,
      pauseMs,
      newestMax,
    ],
  );
  await connection.rows(
    unpreparedStatement(
      'update alerts set due_at = $2 where organization_id = $1 and problem is not null and due_at > $2',
    ),
    [organizationId, at],
  );
}

export type AlertRow = {
  kind: AlertKind;
  waiting: number;
  waiting_since: Date;
  newest: readonly NotedEvent[];
  due_at: Date;
  problem: AlertProblem | null;
};

const alertColumns = 'kind, waiting, waiting_since, newest, due_at, problem';

/** The one that is due first. */
export async function takeDueAlert(
  transaction: Connection,
  organizationId: string,
  at: Date,
): Promise<AlertRow | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<AlertRow>(
      `select ${alertColumns}
       from alerts
       where organization_id = $1 and due_at <= $2
       order by due_at, kind
       limit 1
       for update`,
    ),
    [organizationId, at],
  );
  return row ?? null;
}

/** There are no more than kinds. */
export async function listWaiting(connection: Connection, organizationId: string): Promise<AlertRow[]> {
  return connection.rows(
    unpreparedStatement<AlertRow>(
      `select ${alertColumns} from alerts where organization_id = $1 and due_at is not null order by due_at, kind`,
    ),
    [organizationId],
  );
}

export async function noteTold(
  connection: Connection,
  organizationId: string,
  kind: AlertKind,
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update alerts
       set waiting = 0, waiting_since = null, newest = '[]', due_at = null, problem = null, last_told_at = $3
       where organization_id = $1 and kind = $2`,
    ),
    [organizationId, kind, at],
  );
}

export async function putOff(
  connection: Connection,
  organizationId: string,
  kind: AlertKind,
  { problem, dueAt }: { problem: AlertProblem; dueAt: Date },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      'update alerts set problem = $3, due_at = $4 where organization_id = $1 and kind = $2',
    ),
    [organizationId, kind, problem, dueAt],
  );
}

export type Watch = { webhookId: string; failingSince: Date; dueAt: Date };

/** One that fails again is watched anew. */
export async function watchWebhooks(
  connection: Connection,
  organizationId: string,
  watches: readonly Watch[],
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into alert_watches (organization_id, webhook_id, failing_since, due_at)
       select $1, webhook_id, failing_since, due_at
       from unnest($2::uuid[], $3::timestamptz[], $4::timestamptz[]) as given (webhook_id, failing_since, due_at)
       order by webhook_id
       on conflict (organization_id, webhook_id) do update
       set failing_since = excluded.failing_since, due_at = excluded.due_at`,
    ),
    [
      organizationId,
      watches.map(({ webhookId }) => webhookId),
      watches.map(({ failingSince }) => failingSince),
      watches.map(({ dueAt }) => dueAt),
    ],
  );
}

/** An organization has few endpoints. */
export async function takeDueWatches(
  transaction: Connection,
  organizationId: string,
  at: Date,
): Promise<Watch[]> {
  return transaction.rows(
    unpreparedStatement<Watch>(
      `delete from alert_watches
       where organization_id = $1 and due_at <= $2
       returning webhook_id as "webhookId", failing_since as "failingSince", due_at as "dueAt"`,
    ),
    [organizationId, at],
  );
}

/** Of all organizations: how many wait for something to be sent that cannot be. For the operator. */
export async function countWaitingInVain(connection: Connection): Promise<number> {
  const [row] = await connection.rows(
    unpreparedStatement<{ count: number }>(
      `select count(distinct organization_id)::integer as count
       from alerts
       where due_at is not null and problem is not null`,
    ),
  );
  return row?.count ?? 0;
}
