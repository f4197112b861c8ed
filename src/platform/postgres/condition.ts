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

/**
 * The monthly partitions that are not there, from the month of `at` on, this many months in all. A table without
 * a partition for the present month refuses new rows.
 */
export async function findMissingPartitions(
  connection: Connection,
  at: Date,
  months: number,
): Promise<string[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ name: string }>(
      `select needed.name
       from pg_partitioned_table p
       join pg_class c on c.oid = p.partrelid
       cross join generate_series(0, $2::integer - 1) as ahead
       cross join lateral (
         -- Named as create_monthly_partitions names them.
         select format('%s_%s', c.oid::regclass, to_char(
           date_trunc('month', $1::timestamptz at time zone 'utc') + make_interval(months => ahead), 'YYYY_MM'
         )) as name
       ) needed
       where c.relnamespace = current_schema()::regnamespace
         and not c.relispartition
         and to_regclass(needed.name) is null
       order by 1`,
    ),
    [at, months],
  );
  return rows.map(({ name }) => name);
}
