import type { Connection, Statement } from './database.ts';

/**
 * Rows of one statement. More would hold what they delete for longer, and in the end reach the time limit of
 * statements: then nothing would be deleted, ever. Fewer cost more round trips.
 */
const defaultRowsMax = 10_000;

/**
 * Housekeeping: deletes all rows that are older than `limit`, as many statements long as there are more. `deletion`
 * takes the limit and the number of rows, and returns one row for each that it deleted. It should skip locked
 * rows: one that is renewed meanwhile is not old any more. And it should not be prepared: a plan made while the table
 * was empty would compare all rows with all.
 *
 * Ends because no new rows are older than the limit.
 */
export async function deleteOldRows(
  connection: Connection,
  deletion: Statement<unknown>,
  limit: Date | number,
  rowsMax = defaultRowsMax,
): Promise<void> {
  let deleted: number;
  do deleted = (await connection.rows(deletion, [limit, rowsMax])).length;
  while (deleted === rowsMax);
}
