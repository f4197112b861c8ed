import { planByIndex, type Transaction } from './database.ts';
import { type Predicate, toPredicate } from './predicate.ts';

/**
 * SQL: a row of an organization's table has the key that another row names. Like the plain comparison of the columns,
 * but it can only be used for looking up keys in an index, one after the other, in transactions by index
 * (`transactionByIndex`). The equality of two first columns would also let PostgreSQL read all of a table in the order
 * of an index and compare every row with all keys: that costs nothing as long as the table is empty, and the plan
 * outlives that state. `any` over an array of one is found by an index as well, and serves no other join.
 *
 * `columns` are those after `organization_id`; one that the other row calls otherwise stands with its name there, as in
 * `['id', 'message_id']`.
 */
export function hasKeyOf(
  row: string,
  given: string,
  columns: readonly (string | readonly [own: string, given: string])[],
): Predicate {
  const others = columns.map((column) => {
    const [own, other] = typeof column === 'string' ? [column, column] : column;
    return `${row}.${own} = ${given}.${other}`;
  });
  return toPredicate(
    [`${row}.organization_id = any (array[${given}.organization_id])`, ...others].join(' and '),
  );
}

/** Has the rest of a transaction find rows by index, as `transactionByIndex` does from its beginning. */
export async function continueByIndex(transaction: Transaction): Promise<void> {
  await transaction.rows(planByIndex);
}
