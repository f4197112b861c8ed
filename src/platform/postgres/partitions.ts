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
  };
}
