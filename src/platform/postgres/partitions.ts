import { type Database, unpreparedStatement } from './database.ts';

/** So many months ahead: as long as no housekeeping may run before there is no room for new rows. */
const monthsAhead = 4;

/** Makes the partitions that the coming months need, for every partitioned table of the schema. */
export async function createPartitions(database: Database, at: Date): Promise<void> {
  const tables = await database.rows(
    unpreparedStatement<{ name: string }>(
      `select c.oid::regclass::text as name
       from pg_partitioned_table p
       join pg_class c on c.oid = p.partrelid
       where c.relnamespace = current_schema()::regnamespace and not c.relispartition
       order by 1`,
    ),
  );
  for (const { name } of tables) {
    await database.rows(unpreparedStatement('call create_monthly_partitions($1::regclass, $2, $3)'), [
      name,
      at,
      monthsAhead,
    ]);
  }
}
