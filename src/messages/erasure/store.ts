import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';
import { type ChangedRecipient, type ChangedRow, toChanged } from '../recipients/store.ts';

export type ErasedRecipients = {
  organizationId: string;
  addressKey: string;
  /** The value that replaces it. */
  erasedKey: string;
  beforeMessageId: string;
};

/**
 * Erases the address from recipients, found by the index recipients_address, and returns them. Messages that still have
 * a job in the queue are left out, since every copy of a message names all its recipients. A copy of a campaign names
 * one recipient only, so there only that recipient's own job counts.
 */
export async function eraseRecipients(
  connection: Connection,
  { organizationId, addressKey, erasedKey, beforeMessageId }: ErasedRecipients,
  limit: number,
): Promise<ChangedRecipient[]> {
  const rows = await connection.rows(
    unpreparedStatement<ChangedRow>(
      `with condemned as (
         select r.organization_id, r.message_id, r.ordinal
         from recipients r
         where r.organization_id = $1 and r.address_key = $2 and r.message_id < $3
           and not exists (
             select
             from delivery_queue q
             where q.organization_id = r.organization_id and q.message_id = r.message_id
               and (r.contact_id is null or q.ordinal = r.ordinal)
           )
         limit $4
       )
       update recipients r
       set address = '', address_key = $5, variables = null, diagnostic = null, remote = null,
         -- A recipient that is not in the queue yet is dropped, and will never be queued.
         drop_reason = case
           when r.contact_id is not null and r.status = 'sent' and r.handed_off_at is null
             then coalesce(r.drop_reason, 'contact_deleted')
           else r.drop_reason
         end
       from condemned
       where r.organization_id = condemned.organization_id
         and r.message_id = condemned.message_id
         and r.ordinal = condemned.ordinal
       returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key`,
    ),
    [organizationId, addressKey, beforeMessageId, limit, erasedKey],
  );
  return rows.map(toChanged);
}

/** Whether messages to the address, sent before the deletion, are still queued. */
export async function hasPendingRecipients(
  connection: Connection,
  { organizationId, addressKey, beforeMessageId }: ErasedRecipients,
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `select
       from recipients
       where organization_id = $1 and address_key = $2 and message_id < $3
       limit 1`,
    ),
    [organizationId, addressKey, beforeMessageId],
  );
  return rows.length > 0;
}

/**
 * Deletes the contents of messages, since they name their recipients. A subject may contain a name too, and is deleted
 * once the last recipient of the message has been erased.
 */
export async function eraseMessages(
  connection: Connection,
  organizationId: string,
  messageIds: readonly string[],
): Promise<void> {
  if (messageIds.length === 0) return;
  await connection.rows(
    unpreparedStatement(
      `with nameless as (
         select id
         from unnest($2::uuid[]) as erased (id)
         where not exists (
           select
           from recipients r
           where r.organization_id = $1 and r.message_id = erased.id and r.address <> ''
         )
       ), emptied as (
         update messages m
         set subject = null, subject_key = null,
           details = (m.details::jsonb || '{"attachments": []}')::json
         from nameless
         where m.organization_id = $1 and m.id = nameless.id
       )
       delete from message_contents
       where organization_id = $1 and message_id = any ($2::uuid[])`,
    ),
    [organizationId, messageIds],
  );
}
