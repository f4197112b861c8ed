import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';

/**
 * An address of a contact that was deleted, until nothing speaks of it any more. Audience only notes it: whoever has
 * the address in rows of its own takes it from here.
 */
export type Erasure = { organizationId: string; address: string; requestedAt: Date };

/** The one that has been due for longest; another node that asks before the transaction ends gets another one. */
export async function takeDueErasure(transaction: Connection, at: Date): Promise<Erasure | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ organization_id: string; address: string; requested_at: Date }>(
      `select organization_id, address, requested_at
       from erasures
       where due_at <= $1
       order by due_at
       limit 1
       for update skip locked`,
    ),
    [at],
  );
  return row === undefined
    ? null
    : { organizationId: row.organization_id, address: row.address, requestedAt: row.requested_at };
}

export async function findNextErasureAt(connection: Connection): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ due_at: Date | null }>('select min(due_at) as due_at from erasures'),
  );
  return row?.due_at ?? null;
}

export async function postponeErasure(transaction: Connection, erasure: Erasure, dueAt: Date): Promise<void> {
  await transaction.rows(
    unpreparedStatement('update erasures set due_at = $3 where organization_id = $1 and address = $2'),
    [erasure.organizationId, erasure.address, dueAt],
  );
}

export async function finishErasure(transaction: Connection, erasure: Erasure): Promise<void> {
  await transaction.rows(
    unpreparedStatement('delete from erasures where organization_id = $1 and address = $2'),
    [erasure.organizationId, erasure.address],
  );
}
