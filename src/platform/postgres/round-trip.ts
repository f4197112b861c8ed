import type { Database, Statement } from './database.ts';

/** One statement in a transaction of its own, for the sake of its plan. */
export async function inOneRoundTrip<Row>(
  database: Database,
  given: Statement<Row>,
  values: readonly unknown[],
): Promise<Row[]> {
  const [rows] = await database.together<[Row]>(null, [{ statement: given, values }]);
  return rows;
}
