import { type Connection, unpreparedStatement } from './database.ts';

/** What an operator wants to know of a PostgreSQL before trusting it; `findDurabilityProblems` finds the rest. */

/** The lowest major version that the schema and the statements need. */
export const serverVersionMin = 15;

/** The version in words, and its major number. */
export async function readServerVersion(connection: Connection): Promise<{ text: string; major: number }> {
  const [row] = await connection.rows(
    unpreparedStatement<{ text: string; number: number }>(
      `select current_setting('server_version') as text, current_setting('server_version_num')::integer as number`,
    ),
  );
  if (row === undefined) throw new Error('PostgreSQL does not tell its version');
  return { text: row.text, major: Math.trunc(row.number / 10_000) };
}

/** Whether it takes no writes, as a standby does not. */
export async function isReadOnly(connection: Connection): Promise<boolean> {
  const [row] = await connection.rows(
    unpreparedStatement<{ is_read_only: boolean }>(
      "select current_setting('transaction_read_only') = 'on' as is_read_only",
    ),
  );
  return row?.is_read_only === true;
}

/** The database's wall clock, in milliseconds since 1970. */
export async function readServerTimeMs(connection: Connection): Promise<number> {
  const [row] = await connection.rows(
    unpreparedStatement<{ ms: number }>(
      'select (extract(epoch from clock_timestamp()) * 1000)::float8 as ms',
    ),
  );
  if (row === undefined) throw new Error('PostgreSQL does not tell the time');
  return row.ms;
}
