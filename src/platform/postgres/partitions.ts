import { type Clock, now } from '../clock.ts';
import { groupBy } from '../grouping.ts';
import {
  type Connection,
  type Database,
  isPartitionMissing,
  type Transaction,
  unpreparedStatement,
} from './database.ts';
import { type PartitionSize, tablesByDay } from './partition-size.ts';

/**
 * How many there are from the present one on, and how many the doctor asks for: for as long as housekeeping may fail to
 * run before new rows have no partition. With more, every statement that does not name a time looks into more of them.
 */
export const partitionsAhead: Readonly<Record<PartitionSize, { made: number; needed: number }>> = {
  month: { made: 4, needed: 3 },
  week: { made: 6, needed: 3 },
  day: { made: 8, needed: 4 },
};

type PartitionedTable = { name: string; size: PartitionSize };

async function listPartitionedTables(
  connection: Connection,
  size: PartitionSize,
): Promise<PartitionedTable[]> {
  const tables = await connection.rows(
    unpreparedStatement<{ name: string }>(
      `select c.oid::regclass::text as name
       from pg_partitioned_table p
       join pg_class c on c.oid = p.partrelid
       where c.relnamespace = current_schema()::regnamespace and not c.relispartition
       order by 1`,
    ),
  );
  return tables.map(({ name }) => ({ name, size: sizeOf(name, size) }));
}

function sizeOf(table: string, size: PartitionSize): PartitionSize {
  return tablesByDay.has(table) ? 'day' : size;
}

/** Makes the partitions that the time to come needs, for every partitioned table of the schema. */
export async function createPartitions(
  connection: Connection,
  at: Date,
  size: PartitionSize = 'month',
): Promise<void> {
  for (const table of await listPartitionedTables(connection, size)) await makeAhead(connection, table, at);
}

async function makeAhead(connection: Connection, { name, size }: PartitionedTable, at: Date): Promise<void> {
  await connection.rows(makePartitions, [name, at, size, partitionsAhead[size].made]);
}

const makePartitions = unpreparedStatement('call create_partitions($1::regclass, $2, $3, $4)');

/** Longer, and all who use a table wait for a drop that waits for one of them. It is tried again with the next run. */
const dropLockTimeout = '500ms';

/**
 * Partitions of the future that are larger than they are to be now, and have no rows, are made anew in the wanted size: a
 * smaller size would take effect after months otherwise. Each table is one transaction; what waits too long rejects.
 */
export async function splitPartitionsAhead(database: Database, at: Date, size: PartitionSize): Promise<void> {
  for (const table of await listPartitionedTables(database, size)) {
    const large = await database.rows(selectLargeAhead, [table.name, at, table.size]);
    if (large.length === 0) continue;
    await database.transaction(async (transaction) => {
      await transaction.rows(unpreparedStatement(`set local lock_timeout = '${dropLockTimeout}'`));
      for (const { name } of large) {
        // Looked at under the lock: a row may have been stored by a clock that was ahead.
        await transaction.rows(unpreparedStatement(`lock table ${name} in access exclusive mode`));
        const rows = await transaction.rows(unpreparedStatement(`select from ${name} limit 1`));
        if (rows.length === 0) await transaction.rows(unpreparedStatement(`drop table ${name}`));
      }
      await makeAhead(transaction, table, at);
    });
  }
}

const selectLargeAhead = unpreparedStatement<{ name: string }>(
  `select quote_ident(name) as name
   from partitions_of($1::regclass)
   cross join lateral (select instant_of_id(from_id) at time zone 'utc' as starts_at) piece
   where from_id > lowest_id_at($2)
     and to_id > lowest_id_at((date_trunc($3, starts_at) + ('1 ' || $3)::interval) at time zone 'utc')
   order by from_id`,
);

/** The ids in it: `from` the first that may be, null where it reaches back to the beginning, and `before` a greater one. */
export type PartitionRange = { from: string | null; before: string };

/**
 * Drops the partitions of these tables whose time was over by then: those of one time together, the oldest first, so that
 * no row is left whose other half is gone. Each time is one transaction, in which `mayGo` is asked before anything is
 * locked, and `finish` once nobody else uses the
 * tables any more, for what else is to be done with them; a time of which one says no is left as it is. What waits too
 * long for a lock rejects. Where another node is at it, nothing is done. Returns how many were dropped.
 */
export async function dropPartitionsBefore(
  database: Database,
  tables: readonly string[],
  before: Date,
  {
    mayGo = () => Promise.resolve(true),
    finish = () => Promise.resolve(true),
  }: {
    mayGo?: (transaction: Transaction, range: PartitionRange) => Promise<boolean>;
    finish?: (transaction: Transaction, range: PartitionRange) => Promise<boolean>;
  } = {},
): Promise<number> {
  const over = await database.rows(selectOver, [tables, before]);
  let dropped = 0;
  for (const [toId, partitions] of groupBy(over, ({ to_id }) => to_id)) {
    const range = { from: lowestOf(partitions.map(({ from_id }) => from_id)), before: toId };
    try {
      await database.transaction(async (transaction) => {
        await transaction.rows(unpreparedStatement(`set local lock_timeout = '${dropLockTimeout}'`));
        const [turn] = await transaction.rows(takeTurnToDrop);
        if (turn?.is_taken !== true) throw new Left();
        if (!(await mayGo(transaction, range))) throw new Left();
        const names = partitions.map(({ name }) => name).join(', ');
        await transaction.rows(unpreparedStatement(`drop table if exists ${names}`));
        if (!(await finish(transaction, range))) throw new Left();
      });
      dropped += partitions.length;
    } catch (cause) {
      if (!(cause instanceof Left)) throw cause;
    }
  }
  return dropped;
}

/** Ids in lower case sort like their bytes. */
function lowestOf(ids: readonly (string | null)[]): string | null {
  return ids.reduce((lowest, id) => {
    if (lowest === null || id === null) return null;
    return id < lowest ? id : lowest;
  });
}

/** Ends a transaction that is to change nothing. */
class Left extends Error {
  override readonly name = 'Left';
}

/** In the order of the tables, which is that in which the program locks them. */
const selectOver = unpreparedStatement<{ name: string; from_id: string | null; to_id: string }>(
  // Named as create_partitions names them; nothing else is dropped.
  `select quote_ident(p.name) as name, p.from_id, p.to_id
   from unnest($1::text[]) with ordinality as wanted (parent, position)
   cross join lateral partitions_of(wanted.parent::regclass) p
   where p.name ~ '^[a-z_]+(_[0-9]{4}_[0-9]{2}|_[0-9]{4}_[0-9]{2}_[0-9]{2})$' and p.to_id <= lowest_id_at($2)
   order by p.to_id, wanted.position`,
);

const takeTurnToDrop = unpreparedStatement<{ is_taken: boolean }>(
  "select pg_try_advisory_xact_lock(hashtextextended('drop_partitions', 0)) as is_taken",
);

/** The times up to which the tables have no partition, of those from `at` on that should have one: a table refuses rows there. */
export async function findMissingPartitions(
  connection: Connection,
  at: Date,
  size: PartitionSize,
): Promise<string[]> {
  const tables = await listPartitionedTables(connection, size);
  const rows = await connection.rows(
    unpreparedStatement<{ name: string }>(
      `select c.oid::regclass || ' of ' || to_char(starts_at, 'YYYY-MM-DD') as name
       from pg_partitioned_table p
       join pg_class c on c.oid = p.partrelid
       join unnest($2::text[], $3::text[], $4::integer[]) as sized (name, size, needed)
         on sized.name = c.oid::regclass::text
       cross join generate_series(0, sized.needed - 1) as ahead
       cross join lateral (
         select date_trunc(sized.size, $1::timestamptz at time zone 'utc') + ahead * ('1 ' || sized.size)::interval
           as starts_at
       ) needed
       where c.relnamespace = current_schema()::regnamespace
         and not c.relispartition
         and not exists (
           select
           from partitions_of(c.oid)
           where (from_id is null or from_id <= lowest_id_at(starts_at at time zone 'utc'))
             and to_id > lowest_id_at(starts_at at time zone 'utc')
         )
       order by 1`,
    ),
    [
      at,
      tables.map(({ name }) => name),
      tables.map((table) => table.size),
      tables.map((table) => partitionsAhead[table.size].needed),
    ],
  );
  return rows.map(({ name }) => name);
}

/** What a partitioned table takes on disk with its indexes, and where its oldest rows may be. */
export type TableExtent = {
  table: string;
  bytes: number;
  partitions: number;
  /** When its oldest partition ends. */
  oldestEndsAt: Date;
};

/** Reads the sizes of files, and no row. */
export async function measureTables(
  connection: Connection,
  tables: readonly string[],
): Promise<TableExtent[]> {
  return connection.rows(
    unpreparedStatement<TableExtent>(
      `select wanted.parent as table, sum(pg_total_relation_size(quote_ident(p.name)::regclass))::float8 as bytes,
         count(*)::integer as partitions, min(instant_of_id(p.to_id)) as "oldestEndsAt"
       from unnest($1::text[]) with ordinality as wanted (parent, position)
       cross join lateral partitions_of(wanted.parent::regclass) p
       group by wanted.parent, wanted.position
       order by wanted.position`,
    ),
    [tables],
  );
}

/**
 * The same database, whose transactions find their partitions: one that fails because a partition is missing is run
 * once more, after the partitions of this time were made. Housekeeping makes them months ahead; this is for an
 * installation that did not run it, or that lost one.
 */
export function withPartitionsOnDemand(
  database: Database,
  clock: Clock,
  size: PartitionSize = 'month',
): Database {
  const withRoom = async <Result>(run: () => Promise<Result>): Promise<Result> => {
    try {
      return await run();
    } catch (cause) {
      if (!isPartitionMissing(cause)) throw cause;
      await createPartitions(database, now(clock), size);
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
