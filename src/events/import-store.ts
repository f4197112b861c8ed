import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';

/** A part of a file, by the SHA-256 of its rows. */
export type ImportedPart = { organizationId: string; digest: Buffer };

/**
 * Notes that a part is imported, in the transaction that stores its events. Returns null where it is new, and otherwise
 * which of its rows are still missing. Waits for another import of the same part.
 */
export async function claimPart(
  transaction: Connection,
  { organizationId, digest }: ImportedPart,
  at: Date,
): Promise<readonly number[] | null> {
  const inserted = await transaction.rows(
    unpreparedStatement(
      `insert into event_imports (organization_id, digest, missing, imported_at)
       values ($1, $2, '{}', $3)
       on conflict do nothing
       returning true as is_new`,
    ),
    [organizationId, digest, at],
  );
  if (inserted.length > 0) return null;
  return findMissingRows(transaction, { organizationId, digest }, 'for update');
}

/** Which rows of a part are missing; null where it was never imported. */
export async function findMissingRows(
  connection: Connection,
  { organizationId, digest }: ImportedPart,
  locking: '' | 'for update' = '',
): Promise<readonly number[] | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ missing: number[] }>(
      `select missing from event_imports where organization_id = $1 and digest = $2 ${locking}`,
    ),
    [organizationId, digest],
  );
  return row?.missing ?? null;
}

export async function setMissingRows(
  transaction: Connection,
  { organizationId, digest }: ImportedPart,
  missing: readonly number[],
): Promise<void> {
  await transaction.rows(
    unpreparedStatement('update event_imports set missing = $3 where organization_id = $1 and digest = $2'),
    [organizationId, digest, missing],
  );
}
