import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { keyColumns, type RecipientKey, recipientKey } from '../keys.ts';
import { type ChangedRecipient, type ChangedRow, toChanged } from './store.ts';

/** Notes that these recipients, whose jobs were taken out of the queue, get nothing, and returns them. */
export async function cancelRecipients(
  connection: Connection,
  recipients: readonly RecipientKey[],
  at: Date,
): Promise<ChangedRecipient[]> {
  const rows = await connection.rows(
    unpreparedStatement<ChangedRow>(
      `update recipients r
       set status = 'cancelled', status_at = $4
       from unnest($1::uuid[], $2::uuid[], $3::integer[]) as cancelled (organization_id, message_id, ordinal)
       where ${hasKeyOf('r', 'cancelled', recipientKey)}
       returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key`,
    ),
    [...keyColumns(recipients), at],
  );
  return rows.map((row) => toChanged(row));
}
