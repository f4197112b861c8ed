import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { organizationsDue } from '../platform/queue/turns.ts';
import type { EventType } from './event-types.ts';

/** Alerts read the log as webhooks do. What they want of it is theirs: neither's change is a change of the other's. */

/** Has these types logged for alerts, and no others. Nobody else may change that meanwhile. */
export async function setAlertTypes(
  connection: Connection,
  organizationId: string,
  types: readonly EventType[],
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `with gone as (
         delete from webhook_interests i
         where i.organization_id = $1 and i.reader = 'alerts' and i.type_pattern <> all ($2::text[])
       )
       insert into webhook_interests (organization_id, reader, of_campaigns, type_pattern)
       select $1, 'alerts', false, type
       from unnest($2::text[]) as wanted (type)
       on conflict do nothing`,
    ),
    [organizationId, types],
  );
}

/**
 * The position behind all that is in the log, for alerts to begin with. What is being numbered at this moment may lie behind
 * it, and did not see what alerts want: so the log is read once.
 */
export async function beginAlerts(connection: Connection, organizationId: string): Promise<number> {
  const [row] = await connection.rows(
    unpreparedStatement<{ next: number }>(
      `insert into webhook_positions (organization_id, has_alerts) values ($1, true)
       on conflict (organization_id) do update set has_alerts = true
       returning last_position + 1 as next`,
    ),
    [organizationId],
  );
  return row?.next ?? 1;
}

const selectWithAlerts = statement<{ organization_id: string }>(
  'webhook_positions_find_alerts',
  organizationsDue({ table: 'webhook_positions', among: 'has_alerts', due: '$1::timestamptz is not null' }),
);

/** Organizations of which the log has something for alerts, after the one given, in the order of their ids. */
export async function findWithAlerts(
  connection: Connection,
  { at, after, limit }: { at: Date; after: string | null; limit: number },
): Promise<string[]> {
  const rows = await connection.rows(selectWithAlerts, [at, after, limit]);
  return rows.map((row) => row.organization_id);
}

/** Notes that alerts have read up to a position: there is nothing more for them unless something was numbered meanwhile. */
export async function noteAlertsRead(
  transaction: Connection,
  organizationId: string,
  nextPosition: number,
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `update webhook_positions set has_alerts = false
       where organization_id = $1 and has_alerts and last_position < $2`,
    ),
    [organizationId, nextPosition],
  );
}

export type FailingWebhook = {
  url: string;
  description: string | null;
  status: 'enabled' | 'paused' | 'disabled';
  failingSince: Date | null;
  lastFailureMessage: string | null;
};

/** What people are told of endpoints that fail: those that there are, by their ids. */
export async function findFailingWebhooks(
  connection: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<Map<string, FailingWebhook>> {
  const rows = await connection.rows(
    unpreparedStatement<FailingWebhook & { id: string }>(
      `select w.id, w.url, w.description, w.status, c.failing_since as "failingSince",
         c.last_failure_message as "lastFailureMessage"
       from webhooks w
       join webhook_cursors c on c.organization_id = w.organization_id and c.webhook_id = w.id
       where w.organization_id = $1 and w.id = any ($2::uuid[])`,
    ),
    [organizationId, ids],
  );
  return new Map(rows.map(({ id, ...webhook }) => [id, webhook]));
}
