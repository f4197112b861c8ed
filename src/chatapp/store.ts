import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import type { DropReason, Horizon, MessageRow } from '../messages/messages.ts';

/** The parts of a chat-app message apart from its message: its content and its one recipient. */
export type ChatAppParts = {
  message_id: string;
  /** Null once it was erased, or is too old. */
  content: unknown;
  address: string;
  drop_reason: DropReason | null;
  handed_off_at: Date | null;
  delivered_at: Date | null;
  opened_at: Date | null;
  uncertain: boolean;
  failure_class: string | null;
  diagnostic: string | null;
};

/** A chat-app message with all its parts. */
export type ChatAppRow = MessageRow & ChatAppParts;

/** By the id of their message. */
export async function loadChatAppParts(
  connection: Connection,
  {
    organizationId,
    messageIds,
    horizon,
  }: { organizationId: string; messageIds: readonly string[]; horizon: Horizon },
): Promise<Map<string, ChatAppParts>> {
  const rows = await connection.rows(
    unpreparedStatement<ChatAppParts>(
      `select r.message_id, c.content, r.address, r.drop_reason, r.handed_off_at, r.delivered_at, r.opened_at,
         r.uncertain, r.failure_class, r.diagnostic
       from recipients r
       left join message_contents c
         on c.organization_id = r.organization_id and c.message_id = r.message_id
         and ($3::uuid is null or c.message_id >= $3)
       where r.organization_id = $1 and r.message_id = any ($2::uuid[]) and r.ordinal = 0`,
    ),
    [organizationId, messageIds, horizon.contentFrom],
  );
  return new Map(rows.map((parts) => [parts.message_id, parts]));
}

/** By message; those that were made of no template are missing. Behind the wall of the organization. */
export async function findTemplateIds(
  connection: Connection,
  organizationId: string,
  messageIds: readonly string[],
): Promise<Map<string, string>> {
  const rows = await connection.rows(
    unpreparedStatement<{ id: string; template_id: string }>(
      `select id, template_id
       from messages
       where organization_id = $1 and id = any ($2::uuid[]) and template_id is not null`,
    ),
    [organizationId, messageIds],
  );
  return new Map(rows.map(({ id, template_id: templateId }) => [id, templateId]));
}
