import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';
import { devicesMax } from '../../devices/devices.ts';
import { type RecipientKey, toKey } from '../keys.ts';
import type { ErasedAddress } from '../recipients/erasure-store.ts';
import { isInSlice } from '../slices.ts';

/** Whether messages to the address, sent before the deletion, are still queued. */
export async function hasPendingRecipients(
  connection: Connection,
  { organizationId, addressKey, beforeMessageId }: ErasedAddress,
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

/** A recipient of a campaign that still has an address or values. */
export type ReadableRecipient = RecipientKey & {
  /** Empty if the contact had lost its address when the campaign reached it. */
  addressKey: string;
  /** It still has a job in the queue. */
  isWaiting: boolean;
};

/**
 * Lists the recipients of campaigns that were this contact, whatever the address was; those with a job in the queue come
 * last. No index begins with the contact: it would make every insert of a recipient more expensive. Instead the messages
 * of the organization's campaigns are found by the index messages_campaign, and in each the contact by recipients_contact
 * (measured with 1,000 campaigns of 100 recipients: 6 ms), with each of its devices. The inner limit prevents other orders
 * of joining. The range and
 * the order prevent the primary key from being used, which would read all recipients of the message: in a partition that
 * was not analyzed yet, both indexes have the same estimated cost.
 */
export async function listReadableRecipients(
  connection: Connection,
  { organizationId, contactId }: { organizationId: string; contactId: string },
  limit: number,
): Promise<ReadableRecipient[]> {
  const rows = await connection.rows(
    unpreparedStatement<{
      organization_id: string;
      message_id: string;
      ordinal: number;
      address_key: string;
      is_waiting: boolean;
    }>(
      `select m.organization_id, m.id as message_id, own.ordinal, own.address_key, own.is_waiting
       from messages m
       cross join lateral (
         select r.ordinal, r.address_key,
           exists (
             select
             from delivery_queue q
             where q.organization_id = r.organization_id and q.message_id = r.message_id and q.ordinal = r.ordinal
           ) or ${isInSlice} as is_waiting
         from recipients r
         where r.organization_id = $1 and r.message_id = m.id and r.contact_id >= $2 and r.contact_id <= $2
           and (r.address <> '' or r.variables is not null)
         order by r.contact_id
         limit ${devicesMax}
       ) own
       where m.organization_id = $1 and m.campaign_id is not null
       order by own.is_waiting, m.id
       limit $3`,
    ),
    [organizationId, contactId, limit],
  );
  return rows.map((row) => ({
    ...toKey(row),
    addressKey: row.address_key,
    isWaiting: row.is_waiting,
  }));
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
           details = (m.details::jsonb - 'contact_id' - 'metadata' || '{"attachments": []}')::json
         from nameless
         where m.organization_id = $1 and m.id = nameless.id
       )
       delete from message_contents
       where organization_id = $1 and message_id = any ($2::uuid[])`,
    ),
    [organizationId, messageIds],
  );
}
