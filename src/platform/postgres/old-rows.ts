import type { Connection, Statement } from './database.ts';

/**
 * Rows of one statement. More would hold what they delete for longer, and in the end reach the time limit of
 * statements: then nothing would be deleted, ever. Fewer cost more round trips.
 */
const defaultRowsMax = 10_000;

/**
 * Housekeeping: deletes all rows that are older than `limit`, as many statements long as there are more. `deletion`
 * takes the limit and the number of rows, and returns one row for each that it deleted. What somebody else holds at
 * this moment it should skip: a row that is renewed meanwhile is none of the old ones. And it should not be prepared:
 * a plan of when the table was empty would compare all rows with all.
 *
 * Ends since nobody makes old rows.
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
