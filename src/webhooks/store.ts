import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import { type CampaignEvents, progressType } from './event-types.ts';
import type { EventFormat } from './schema.ts';

export type WebhookKey = { organizationId: string; id: string };

type WebhookFields = {
  kind: 'url' | 'poll';
  url: string | null;
  events: string[];
  campaign_events: CampaignEvents;
  format: EventFormat;
  description: string | null;
  headers: Record<string, string>;
  concurrency: number;
};

/** With what its cursor says; null of one that polls. */
export type WebhookRow = WebhookFields & {
  id: string;
  status: 'enabled' | 'paused' | 'disabled';
  created_at: Date;
  updated_at: Date;
  backlog: number | null;
  failing_since: Date | null;
  next_try_at: Date | null;
  last_success_at: Date | null;
  last_failure_at: Date | null;
  last_failure_status: number | null;
  last_failure_message: string | null;
};

/** SQL: webhooks `w` with their cursors. */
const selectWebhooks = `select w.id, w.kind, w.url, w.status, w.events, w.campaign_events, w.format, w.description, w.headers,
    w.concurrency, w.created_at, w.updated_at,
    greatest(coalesce(p.last_position, 0) - c.next_position + 1, 0) as backlog,
    c.failing_since, c.next_try_at, c.last_success_at, c.last_failure_at, c.last_failure_status, c.last_failure_message
  from webhooks w
  left join webhook_cursors c on c.organization_id = w.organization_id and c.webhook_id = w.id
  left join webhook_positions p on p.organization_id = w.organization_id`;

export async function insertWebhook(
  connection: Connection,
  { organizationId, id, ...webhook }: WebhookFields & WebhookKey & { secretsSealed: Buffer | null; at: Date },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into webhooks
         (organization_id, id, kind, url, events, campaign_events, description, headers, concurrency, secrets_sealed,
         created_at, updated_at, format)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11, $12)`,
    ),
    [
      organizationId,
      id,
      webhook.kind,
      webhook.url,
      webhook.events,
      webhook.campaign_events,
      webhook.description,
      JSON.stringify(webhook.headers),
      webhook.concurrency,
      webhook.secretsSealed,
      webhook.at,
      webhook.format,
    ],
  );
}

/** The cursor of an endpoint, behind all that is in the log. */
export async function insertCursor(
  connection: Connection,
  { organizationId, id }: WebhookKey,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into webhook_cursors (organization_id, webhook_id, next_position)
       select $1, $2, coalesce((select last_position from webhook_positions where organization_id = $1), 0) + 1`,
    ),
    [organizationId, id],
  );
}

/** Newest first, one more than the page has. */
export async function listWebhooks(
  connection: Connection,
  { organizationId, page }: { organizationId: string; page: Page },
): Promise<WebhookRow[]> {
  return connection.rows(
    unpreparedStatement<WebhookRow>(
      `${selectWebhooks} where w.organization_id = $1 ${pageClause(page, 'w.id', '$2')} limit $3`,
    ),
    [organizationId, cursorOf(page), page.limit + 1],
  );
}

/** How many there are, counted up to `most`. */
export async function countWebhooks(
  connection: Connection,
  organizationId: string,
  most: number,
): Promise<number> {
  const rows = await connection.rows(
    unpreparedStatement('select from webhooks where organization_id = $1 limit $2'),
    [organizationId, most],
  );
  return rows.length;
}

export async function findWebhook(
  connection: Connection,
  { organizationId, id }: WebhookKey,
): Promise<WebhookRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<WebhookRow>(`${selectWebhooks} where w.organization_id = $1 and w.id = $2`),
    [organizationId, id],
  );
  return row ?? null;
}

export async function saveWebhook(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  webhook: WebhookFields,
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update webhooks
       set url = $3, events = $4, campaign_events = $5, description = $6, headers = $7, concurrency = $8, updated_at = $9,
         format = $10
       where organization_id = $1 and id = $2`,
    ),
    [
      organizationId,
      id,
      webhook.url,
      webhook.events,
      webhook.campaign_events,
      webhook.description,
      JSON.stringify(webhook.headers),
      webhook.concurrency,
      at,
      webhook.format,
    ],
  );
}

export async function saveStatus(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  status: 'enabled' | 'paused',
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      'update webhooks set status = $3, updated_at = $4 where organization_id = $1 and id = $2 and status <> $3',
    ),
    [organizationId, id, status, at],
  );
}

/**
 * It is no failure of the endpoint any more, and is tried at once; `fromNow`: with what happens from now on. What is under
 * way would make it a failure again, or move the cursor, and is not written.
 */
export async function resetCursor(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  { fromNow }: { fromNow: boolean },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update webhook_cursors
       set failures = 0, failing_since = null,
         rounds = case when $3 or failing_since is not null then rounds + 1 else rounds end,
         next_position = case
           when $3
             then coalesce((select last_position from webhook_positions where organization_id = $1), 0) + 1
           else next_position
         end
       where organization_id = $1 and webhook_id = $2`,
    ),
    [organizationId, id, fromNow],
  );
}

/** Null if there is no such endpoint. */
export async function findSecrets(
  connection: Connection,
  { organizationId, id }: WebhookKey,
): Promise<Buffer | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ secrets_sealed: Buffer | null }>(
      'select secrets_sealed from webhooks where organization_id = $1 and id = $2 for no key update',
    ),
    [organizationId, id],
  );
  return row?.secrets_sealed ?? null;
}

export async function saveSecrets(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  secretsSealed: Buffer,
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      'update webhooks set secrets_sealed = $3, updated_at = $4 where organization_id = $1 and id = $2',
    ),
    [organizationId, id, secretsSealed, at],
  );
}

/** Returns whether there was one. What was to be tried again goes with it; what is known of attempts goes in time. */
export async function deleteWebhook(
  connection: Connection,
  { organizationId, id }: WebhookKey,
): Promise<boolean> {
  const [rows] = await Promise.all([
    connection.rows(
      unpreparedStatement('delete from webhooks where organization_id = $1 and id = $2 returning id'),
      [organizationId, id],
    ),
    connection.rows(
      unpreparedStatement('delete from webhook_cursors where organization_id = $1 and webhook_id = $2'),
      [organizationId, id],
    ),
    connection.rows(
      unpreparedStatement(
        'delete from webhook_deliveries where organization_id = $1 and webhook_id = $2 and due_at is not null',
      ),
      [organizationId, id],
    ),
  ]);
  return rows.length > 0;
}

/** Makes the interests of an organization those of its webhooks. Nobody else may change these meanwhile. */
export async function refreshInterests(connection: Connection, organizationId: string): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `with wanted as (
         select distinct of_campaigns, type_pattern
         from webhooks w
         cross join unnest(w.events) as type_pattern
         cross join (values (false), (true)) as kinds (of_campaigns)
         where w.organization_id = $1 and (not of_campaigns or w.campaign_events = 'all')
         union
         select true, '${progressType}'
         from webhooks w
         where w.organization_id = $1 and w.campaign_events = 'summary'
       ), gone as (
         delete from webhook_interests i
         where i.organization_id = $1 and i.reader = 'webhooks'
           and not exists (
             select
             from wanted
             where wanted.of_campaigns = i.of_campaigns and wanted.type_pattern = i.type_pattern
           )
       )
       insert into webhook_interests (organization_id, of_campaigns, type_pattern)
       select $1, of_campaigns, type_pattern
       from wanted
       on conflict do nothing`,
    ),
    [organizationId],
  );
}

export type DeliveryRow = {
  event_id: string;
  type: string;
  position: number;
  status: 'retrying' | 'delivered' | 'failed';
  attempts: number;
  due_at: Date | null;
  updated_at: Date;
};

const deliveryColumns = 'event_id, type, position, status, attempts, due_at, updated_at';

/** Newest events first, one more than the page has. */
export async function listDeliveries(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  { page, status, type }: { page: Page; status: string | null; type: string | null },
): Promise<DeliveryRow[]> {
  return connection.rows(
    unpreparedStatement<DeliveryRow>(
      `select ${deliveryColumns}
       from webhook_deliveries
       where organization_id = $1 and webhook_id = $3 and ($4::text is null or status = $4)
         and ($5::text is null or type = $5) ${pageClause(page, 'event_id', '$2')}
       limit $6`,
    ),
    [organizationId, cursorOf(page), id, status, type, page.limit + 1],
  );
}

export async function findDelivery(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  eventId: string,
): Promise<DeliveryRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<DeliveryRow>(
      `select ${deliveryColumns}
       from webhook_deliveries
       where organization_id = $1 and webhook_id = $2 and event_id = $3`,
    ),
    [organizationId, id, eventId],
  );
  return row ?? null;
}

export type AttemptRow = {
  at: Date;
  status: number | null;
  ms: number;
  message: string | null;
  answer: string;
};

/** In their order. There are few of each. */
export async function listAttempts(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  { eventId, limit }: { eventId: string; limit: number },
): Promise<AttemptRow[]> {
  const rows = await connection.rows(
    unpreparedStatement<AttemptRow>(
      `select at, status, ms, message, answer
       from webhook_attempts
       where organization_id = $1 and webhook_id = $2 and event_id = $3
       order by attempt desc
       limit $4`,
    ),
    [organizationId, id, eventId, limit],
  );
  return rows.reverse();
}

/** Has an event told again, at once. Null if the webhook has no delivery of it. */
export async function retryDelivery(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  { eventId, at }: { eventId: string; at: Date },
): Promise<DeliveryRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<DeliveryRow>(
      `update webhook_deliveries
       set status = 'retrying', due_at = $4, updated_at = $4
       where organization_id = $1 and webhook_id = $2 and event_id = $3
       returning ${deliveryColumns}`,
    ),
    [organizationId, id, eventId, at],
  );
  return row ?? null;
}

/** The same of those that were given up, by their positions. Returns how many: as many as there are positions, at most. */
export async function retryFailed(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  { from, to, at }: { from: number; to: number; at: Date },
): Promise<number> {
  const rows = await connection.rows(
    unpreparedStatement(
      `update webhook_deliveries
       set status = 'retrying', due_at = $5, updated_at = $5
       where organization_id = $1 and webhook_id = $2 and status = 'failed' and position between $3 and $4
       returning event_id`,
    ),
    [organizationId, id, from, to, at],
  );
  return rows.length;
}

/**
 * Makes deliveries of events, to be told at once; those that are known already are told again. What is due by now anyway is
 * left as it is: a replay that is asked for again and again writes nothing.
 */
export async function insertReplayed(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  events: readonly { id: string; position: number; type: string }[],
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into webhook_deliveries as d
         (organization_id, webhook_id, event_id, position, type, status, attempts, due_at, updated_at)
       select $1, $2, event_id, position, type, 'retrying', 0, $6, $6
       from unnest($3::uuid[], $4::bigint[], $5::text[]) as given (event_id, position, type)
       on conflict (organization_id, webhook_id, event_id) do update
       set status = 'retrying', due_at = excluded.due_at, updated_at = excluded.updated_at
       where d.due_at is null or d.due_at > excluded.due_at`,
    ),
    [
      organizationId,
      id,
      events.map((event) => event.id),
      events.map(({ position }) => position),
      events.map(({ type }) => type),
      at,
    ],
  );
}
