import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { deleteOldRows } from '../platform/postgres/old-rows.ts';

/** Null for nothing told. */
export type LimitRow = { people_per_day_max: number | null; told_at: Date };

export async function findLimit(connection: Connection, organizationId: string): Promise<LimitRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<LimitRow>(
      'select people_per_day_max, told_at from chat_app_limits where organization_id = $1',
    ),
    [organizationId],
  );
  return row ?? null;
}

/** Returns whether it is another one than before. */
export async function saveLimit(
  transaction: Connection,
  organizationId: string,
  { peoplePerDayMax, at }: { peoplePerDayMax: number | null; at: Date },
): Promise<boolean> {
  const before = await findLimit(transaction, organizationId);
  await transaction.rows(
    unpreparedStatement(
      `insert into chat_app_limits (organization_id, people_per_day_max, told_at)
       values ($1, $2, $3)
       on conflict (organization_id) do update
       set people_per_day_max = excluded.people_per_day_max, told_at = excluded.told_at`,
    ),
    [organizationId, peoplePerDayMax, at],
  );
  return before?.people_per_day_max !== peoplePerDayMax;
}

export async function deleteLimit(transaction: Connection, organizationId: string): Promise<void> {
  await transaction.rows(unpreparedStatement('delete from chat_app_limits where organization_id = $1'), [
    organizationId,
  ]);
}

const lockOne = statement<{ people_per_day_max: number }>(
  'chat_app_limits_lock',
  `select people_per_day_max
   from chat_app_limits
   where organization_id = $1 and people_per_day_max is not null
   for no key update`,
);

/**
 * Null without a limit. Until the transaction ends, no other one that takes this lock reads what is left; what hand-offs
 * count does not take it.
 */
export async function lockLimit(transaction: Connection, organizationId: string): Promise<number | null> {
  const [row] = await transaction.rows(lockOne, [organizationId]);
  return row?.people_per_day_max ?? null;
}

export type BudgetRow = { organization_id: string; people_per_day_max: number; reached: number };

const selectBudgets = statement<BudgetRow>(
  'chat_app_budgets_select',
  `select l.organization_id, l.people_per_day_max, counted.people as reached
   from chat_app_limits l
   cross join lateral (
     select coalesce(sum(c.people), 0)::integer as people
     from chat_app_reached_counts c
     where c.organization_id = l.organization_id and c.period > $2
   ) counted
   where l.organization_id = any ($1::uuid[]) and l.people_per_day_max is not null`,
);

/** Of those that have a limit, by the primary keys: of each, the 145 periods that one day takes at most. */
export async function findBudgets(
  connection: Connection,
  organizationIds: readonly string[],
  countedAfter: Date,
): Promise<BudgetRow[]> {
  return connection.rows(selectBudgets, [organizationIds, countedAfter]);
}

export type ReachedPeople = {
  organizationId: string;
  people: readonly Buffer[];
  period: Date;
  /** Periods up to this one do not count any more. */
  countedAfter: Date;
};

/**
 * People and then periods are locked in their order, as in every transaction that writes them. Whoever was counted in an
 * earlier period that still counts is counted in this one instead.
 */
const reach = statement(
  'chat_app_reached_people_upsert',
  `with reached as (
     insert into chat_app_reached_people as p (organization_id, person, period)
     select $1::uuid, person, $3::timestamptz
     from (select distinct person from unnest($2::bytea[]) as given (person)) given
     where exists (
       select from chat_app_limits where organization_id = $1 and people_per_day_max is not null
     )
     order by person
     on conflict (organization_id, person) do update
     set period = excluded.period, period_before = p.period
     where p.period < excluded.period
     returning period_before
   ), moved as (
     select $3::timestamptz as period, 1 as people from reached
     union all
     select period_before, -1 from reached where period_before > $4
   )
   insert into chat_app_reached_counts as c (organization_id, period, people)
   select $1::uuid, period, sum(people)::integer
   from moved
   group by period
   order by period
   on conflict (organization_id, period) do update
   set people = c.people + excluded.people`,
);

/** Counts them. Does nothing for an organization without a limit. */
export async function insertReached(transaction: Connection, reached: ReachedPeople): Promise<void> {
  await transaction.rows(reach, [
    reached.organizationId,
    reached.people,
    reached.period,
    reached.countedAfter,
  ]);
}

const selectReached = statement<{ person: Buffer }>(
  'chat_app_reached_people_select',
  `select person
   from chat_app_reached_people
   where organization_id = $1 and person = any ($2::bytea[]) and period > $3`,
);

/** Those of the people who are counted. */
export async function findReached(
  connection: Connection,
  organizationId: string,
  { people, countedAfter }: { people: readonly Buffer[]; countedAfter: Date },
): Promise<Buffer[]> {
  const rows = await connection.rows(selectReached, [organizationId, people, countedAfter]);
  return rows.map(({ person }) => person);
}

/** Their counts stay: the provider counts them as before. */
export async function deleteReached(
  transaction: Connection,
  organizationId: string,
  people: readonly Buffer[],
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      'delete from chat_app_reached_people where organization_id = $1 and person = any ($2::bytea[])',
    ),
    [organizationId, people],
  );
}

/** Uses chat_app_reached_people_period. Whoever is written to at this moment is skipped. */
const deleteOldPeople = unpreparedStatement(
  `with old as (
     select organization_id, person
     from chat_app_reached_people
     where period < $1
     limit $2
     for update skip locked
   )
   delete from chat_app_reached_people p
   using old
   where p.organization_id = old.organization_id and p.person = old.person
   returning true as is_deleted`,
);

/** Uses chat_app_reached_counts_period. */
const deleteOldCounts = unpreparedStatement(
  `with old as (
     select organization_id, period
     from chat_app_reached_counts
     where period < $1
     limit $2
     for update skip locked
   )
   delete from chat_app_reached_counts c
   using old
   where c.organization_id = old.organization_id and c.period = old.period
   returning true as is_deleted`,
);

/** Housekeeping, of all organizations. */
export async function deleteOldReached(
  connection: Connection,
  before: Date,
  rowsMax?: number,
): Promise<void> {
  await deleteOldRows(connection, deleteOldPeople, before, rowsMax);
  await deleteOldRows(connection, deleteOldCounts, before, rowsMax);
}
