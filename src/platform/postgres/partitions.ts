import { type Clock, now } from '../clock.ts';
import { type Connection, type Database, isPartitionMissing, unpreparedStatement } from './database.ts';

/** Months ahead: for as long housekeeping may fail to run before new rows have no partition. */
const monthsAhead = 4;

/** Makes the partitions that the coming months need, for every partitioned table of the schema. */
export async function createPartitions(database: Connection, at: Date): Promise<void> {
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

/** Longer, and all who use the table wait for a drop that waits for one of them. It is tried again with the next run. */
const dropLockTimeout = '1s';

/** Drops the partitions of a table whose month was over by then. Each is one transaction; what waits too long rejects. */
export async function dropMonthsBefore(database: Database, table: string, before: Date): Promise<void> {
  const months = await database.rows(
    unpreparedStatement<{ name: string }>(
      // Named as create_monthly_partitions names them; nothing else is dropped.
      `select c.relname::text as name
       from pg_inherits i
       join pg_class c on c.oid = i.inhrelid
       where i.inhparent = $1::regclass
         and c.relname ~ '^[a-z_]+_[0-9]{4}_[0-9]{2}$'
         and (to_date(right(c.relname, 7), 'YYYY_MM') + interval '1 month') at time zone 'utc' <= $2
       order by 1`,
    ),
    [table, before],
  );
  for (const { name } of months) {
    await database.transaction(async (transaction) => {
      await transaction.rows(unpreparedStatement(`set local lock_timeout = '${dropLockTimeout}'`));
      await transaction.rows(unpreparedStatement(`drop table if exists ${name}`));
    });
  }
}

/**
 * The same database, whose transactions find their partitions: one that fails because a partition is missing is run
 * once more, after the partitions of this time were made. Housekeeping makes them months ahead; this is for an
 * installation that did not run it, or that lost one.
 */
export function withPartitionsOnDemand(database: Database, clock: Clock): Database {
  const withRoom = async <Result>(run: () => Promise<Result>): Promise<Result> => {
    try {
      return await run();
    } catch (cause) {
      if (!isPartitionMissing(cause)) throw cause;
      await createPartitions(database, now(clock));
      return run();
    }
  };
  return {
    ...database,
    transaction: (work) => withRoom(() => database.transaction(work)),
    transactionByIndex: (work) => withRoom(() => database.transactionByIndex(work)),
    asOrganizations: (organizationIds, work) =>
      withRoom(() => database.asOrganizations(organizationIds, work)),
    asOrganizationsByIndex: (organizationIds, work) =>
      withRoom(() => database.asOrganizationsByIndex(organizationIds, work)),
    together: (organizationIds, statements) => withRoom(() => database.together(organizationIds, statements)),
  };
}
