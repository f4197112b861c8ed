import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';
import { type ChangedRecipient, type ChangedRow, toChanged } from '../recipients/store.ts';

export type ErasedRecipients = {
  organizationId: string;
  addressKey: string;
  /** What stands in its place afterwards. */
  erasedKey: string;
  beforeMessageId: string;
};

/**
 * Erases the address from recipients of messages of which nothing is in the queue any more, read off
 * recipients_address: every copy of a message names all whom it is for. A campaign's copies name one person each, so
 * that only the recipient's own matters. Returns them.
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
         -- One that was not let into the queue yet is passed over from now on.
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

/** Whether mail to the address, sent before, still waits for its delivery. */
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
 * Deletes the contents of messages, which name their recipients. The subject, too, may speak to somebody by name: it
 * goes once no recipient is known any more.
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
