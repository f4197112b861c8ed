import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';

export type WebhookKey = { organizationId: string; id: string };

export type WebhookRow = {
  id: string;
  kind: 'poll';
  events: string[];
  campaign_events: 'none' | 'all';
  description: string | null;
  created_at: Date;
  updated_at: Date;
};

const columns = 'id, kind, events, campaign_events, description, created_at, updated_at';

export async function insertWebhook(
  connection: Connection,
  { organizationId, ...webhook }: Omit<WebhookRow, 'created_at' | 'updated_at'> & WebhookKey & { at: Date },
): Promise<WebhookRow> {
  const [row] = await connection.rows(
    unpreparedStatement<WebhookRow>(
      `insert into webhooks
         (organization_id, id, kind, events, campaign_events, description, created_at, updated_at)
       values ($1, $2, $3, $4, $5, $6, $7, $7)
       returning ${columns}`,
    ),
    [
      organizationId,
      webhook.id,
      webhook.kind,
      webhook.events,
      webhook.campaign_events,
      webhook.description,
      webhook.at,
    ],
  );
  if (row === undefined) throw new Error('a row that was inserted is returned');
  return row;
}

/** Newest first, one more than the page has. */
export async function listWebhooks(
  connection: Connection,
  { organizationId, page }: { organizationId: string; page: Page },
): Promise<WebhookRow[]> {
  return connection.rows(
    unpreparedStatement<WebhookRow>(
      `select ${columns} from webhooks where organization_id = $1 ${pageClause(page, 'id', '$2')} limit $3`,
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
    unpreparedStatement<WebhookRow>(`select ${columns} from webhooks where organization_id = $1 and id = $2`),
    [organizationId, id],
  );
  return row ?? null;
}

export async function saveWebhook(
  connection: Connection,
  { organizationId, id }: WebhookKey,
  { events, campaign_events: campaignEvents, description }: WebhookRow,
  at: Date,
): Promise<WebhookRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<WebhookRow>(
      `update webhooks
       set events = $3, campaign_events = $4, description = $5, updated_at = $6
       where organization_id = $1 and id = $2
       returning ${columns}`,
    ),
    [organizationId, id, events, campaignEvents, description, at],
  );
  return row ?? null;
}

/** Returns whether there was one. */
export async function deleteWebhook(
  connection: Connection,
  { organizationId, id }: WebhookKey,
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement('delete from webhooks where organization_id = $1 and id = $2 returning id'),
    [organizationId, id],
  );
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
       ), gone as (
         delete from webhook_interests i
         where i.organization_id = $1
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
