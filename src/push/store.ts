import { groupBy } from '../platform/grouping.ts';
import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import type { DropReason, Horizon } from '../messages/messages.ts';
import type { DeviceFate } from './schema.ts';

/** SQL for what became of a push on one device, over its recipient `r` and its engagement `e`. */
const fateOfDevice = `
  case
    when r.drop_reason is not null then 'failed'
    when r.status = 'cancelled' then 'cancelled'
    when r.status = 'failed' and r.failure_class = 'expired' then 'expired'
    when r.status in ('failed', 'bounced') then 'failed'
    when e.clicked_at is not null then 'clicked'
    when e.dismissed_at is not null then 'dismissed'
    when e.displayed_at is not null then 'displayed'
    when e.delivered_at is not null then 'delivered'
    when r.status <> 'delayed' and (r.uncertain or r.handed_off_at is not null) then 'sent'
    else 'queued'
  end`;

/** What pushes say, but for those of which it was erased, or is too old. */
export async function loadContents(
  connection: Connection,
  {
    organizationId,
    messageIds,
    horizon,
  }: { organizationId: string; messageIds: readonly string[]; horizon: Horizon },
): Promise<Map<string, unknown>> {
  const rows = await connection.rows(
    unpreparedStatement<{ message_id: string; content: unknown }>(
      `select message_id, content
       from message_contents
       where organization_id = $1 and message_id = any ($2::uuid[]) and ($3::uuid is null or message_id >= $3)`,
    ),
    [organizationId, messageIds, horizon.contentFrom],
  );
  return new Map(rows.map((row) => [row.message_id, row.content]));
}

export type PushRecipientRow = {
  message_id: string;
  /** As `writePushAddress` wrote it; empty once it was erased. */
  address: string;
  fate: DeviceFate;
  drop_reason: DropReason | null;
  handed_off_at: Date | null;
  uncertain: boolean;
  failure_class: string | null;
  diagnostic: string | null;
  delivered_at: Date | null;
  displayed_at: Date | null;
  clicked_at: Date | null;
  dismissed_at: Date | null;
  action_id: string | null;
};

/** The devices of each push, in the order of their hand-off. */
export async function listPushRecipients(
  connection: Connection,
  { organizationId, messageIds }: { organizationId: string; messageIds: readonly string[] },
): Promise<Map<string, PushRecipientRow[]>> {
  const rows = await connection.rows(
    unpreparedStatement<PushRecipientRow>(
      `select r.message_id, r.address, ${fateOfDevice} as fate, r.drop_reason, r.handed_off_at, r.uncertain,
         r.failure_class, r.diagnostic, e.delivered_at, e.displayed_at, e.clicked_at, e.dismissed_at, e.action_id
       from recipients r
       left join push_engagements e
         on e.organization_id = r.organization_id and e.message_id = r.message_id and e.ordinal = r.ordinal
       where r.organization_id = $1 and r.message_id = any ($2::uuid[])
       order by r.message_id, r.ordinal`,
    ),
    [organizationId, messageIds],
  );
  return groupBy(rows, ({ message_id }) => message_id);
}

export type CountedFates = Partial<Record<DeviceFate, number>>;

/** How many devices of each push have each status; there are at most some hundred devices a push. */
export async function countDeviceFates(
  connection: Connection,
  organizationId: string,
  messageIds: readonly string[],
): Promise<Map<string, CountedFates>> {
  const rows = await connection.rows(
    unpreparedStatement<{ message_id: string; fates: CountedFates }>(
      `select message_id, json_object_agg(fate, count) as fates
       from (
         select r.message_id, ${fateOfDevice} as fate, count(*) as count
         from recipients r
         left join push_engagements e
           on e.organization_id = r.organization_id and e.message_id = r.message_id and e.ordinal = r.ordinal
         where r.organization_id = $1 and r.message_id = any ($2::uuid[])
         group by 1, 2
       ) counted
       group by message_id`,
    ),
    [organizationId, messageIds],
  );
  return new Map(rows.map((row) => [row.message_id, row.fates]));
}
