import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { keyColumns, type RecipientKey, recipientKey } from '../keys.ts';
import { isInSlice } from '../slices.ts';
import { type ChangedRecipient, type ChangedRow, toChanged } from './store.ts';

/** The recipients that have this address, of messages accepted before one with that id would be. */
export type ErasedAddress = {
  organizationId: string;
  addressKey: string;
  /** The value that replaces it. */
  erasedKey: string;
  beforeMessageId: string;
};

/** SQL: the columns that erasing a recipient `r` sets, besides `address_key`. */
const erasedColumns = `address = '', variables = null, diagnostic = null, remote = null,
  -- A recipient that is not in the queue yet is dropped, and will never be queued.
  drop_reason = case
    when r.contact_id is not null and r.status = 'sent' and r.handed_off_at is null
      then coalesce(r.drop_reason, 'contact_deleted')
    else r.drop_reason
  end`;

/**
 * Erases the address from recipients, found by the index recipients_address, and returns them. Messages that still have
 * a job in the queue are left out, since every copy of a message names all its recipients. A copy of a campaign names
 * one recipient only, so there only that recipient's own job counts.
 */
export async function eraseRecipientsOfAddress(
  connection: Connection,
  { organizationId, addressKey, erasedKey, beforeMessageId }: ErasedAddress,
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
           and not ${isInSlice}
         limit $4
       )
       update recipients r
       set address_key = $5, ${erasedColumns}
       from condemned
       where r.organization_id = condemned.organization_id
         and r.message_id = condemned.message_id
         and r.ordinal = condemned.ordinal
       returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key`,
    ),
    [organizationId, addressKey, beforeMessageId, limit, erasedKey],
  );
  return rows.map((row) => toChanged(row));
}

export type ErasedRecipient = RecipientKey & {
  /** The value that replaces the address. */
  erasedKey: string;
};

/** Erases these recipients, in a transaction by index, and returns them. */
export async function eraseRecipients(
  connection: Connection,
  recipients: readonly ErasedRecipient[],
): Promise<ChangedRecipient[]> {
  const rows = await connection.rows(
    unpreparedStatement<ChangedRow>(
      `update recipients r
       set address_key = found.erased_key, ${erasedColumns}
       from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::text[])
         as found (organization_id, message_id, ordinal, erased_key)
       where ${hasKeyOf('r', 'found', recipientKey)}
       returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key`,
    ),
    [...keyColumns(recipients), recipients.map(({ erasedKey }) => erasedKey)],
  );
  return rows.map((row) => toChanged(row));
}
