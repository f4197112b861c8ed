import type { Database, Statement } from './database.ts';

/** One statement in a transaction of its own, for the sake of its plan. */
export function inOneRoundTrip<Row>(
  database: Database,
  given: Statement<Row>,
  values: readonly unknown[],
): Promise<Row[]> {
  return database.transactionByIndex(async (transaction) => {
    const [rows] = await Promise.all([transaction.rows(given, values), transaction.commit()]);
    return rows;
  });
}
