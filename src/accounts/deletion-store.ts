import {
  type Connection,
  isConflict,
  isStatementTimeout,
  isUndefinedTable,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import { toPredicate } from '../platform/postgres/predicate.ts';
import type { OwnedTable } from './owned-table-store.ts';
import type { DeletionState } from './schema.ts';

/** Null if there is no such organization, or none any more. One whose deletion is under way stays so. */
export async function requestDeletion(
  connection: Connection,
  organizationId: string,
): Promise<DeletionState> {
  const [row] = await connection.rows(
    unpreparedStatement<{ deletion: DeletionState }>(
      `update organizations
       set deletion = coalesce(deletion, 'requested')
       where id = $1 and deletion is distinct from 'gone'
       returning deletion`,
    ),
    [organizationId],
  );
  return row?.deletion ?? null;
}

/** Organizations that are being deleted, by the index organizations_deleted. */
export async function listDeletions(
  connection: Connection,
  limit: number,
): Promise<{ id: string; name: string }[]> {
  return connection.rows(
    unpreparedStatement<{ id: string; name: string }>(
      `select id, name
       from organizations
       where deletion in ('requested', 'under_way')
       order by id
       limit $1`,
    ),
    [limit],
  );
}

export async function beginDeletion(connection: Connection, organizationId: string): Promise<void> {
  await connection.rows(
    unpreparedStatement(`update organizations set deletion = 'under_way' where id = $1`),
    [organizationId],
  );
}

/**
 * The transactions of this database, each of which may have begun to work for an organization. By the lock that each has on
 * itself, which every user sees, while pg_stat_activity hides when the transactions of others began, such as those of
 * the user that requests are served as. Those of autovacuum have no user.
 */
export async function listTransactions(connection: Connection): Promise<string[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ transaction: string }>(
      `select l.virtualtransaction as transaction
       from pg_locks l
       join pg_stat_activity a on a.pid = l.pid and a.datname = current_database() and a.usesysid is not null
       where ${isOfTransaction} and l.pid <> pg_backend_pid()`,
    ),
  );
  return rows.map(({ transaction }) => transaction);
}

export async function isAnyUnderWay(
  connection: Connection,
  transactions: readonly string[],
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `select
       from pg_locks l
       where ${isOfTransaction} and l.virtualtransaction = any ($1::text[])
       limit 1`,
    ),
    [transactions],
  );
  return rows.length > 0;
}

const isOfTransaction = toPredicate(`l.locktype = 'virtualxid' and l.virtualxid = l.virtualtransaction`);

/** Where a walk through a table goes on: after a key, or at a page. */
export type Place = { after: string[] | null; page: number };

/** `next` is null at the end of the table. */
export type DeletedRows = { deleted: number; next: Place | null };

/**
 * Deletes some rows of an organization, in the order of the primary key, or where that does not begin with the organization
 * among the rows of some pages.
 */
export async function deleteRows(
  connection: Connection,
  { name, key, pages }: OwnedTable,
  { organizationId, place, rowsMax }: { organizationId: string; place: Place; rowsMax: number },
): Promise<DeletedRows> {
  if (key === null) {
    const end = place.page + pagesAtOnce;
    const rows = await connection.rows(
      unpreparedStatement(
        `delete from ${name}
         where organization_id = $1 and ctid >= $2::text::tid and ctid < $3::text::tid
         returning 1`,
      ),
      [organizationId, `(${place.page},0)`, `(${end},0)`],
    );
    return { deleted: rows.length, next: end < pages ? { after: null, page: end } : null };
  }
  const columns = key.map(({ column }) => column).join(', ');
  const after = key.map(({ type }, index) => `($2::text[])[${index + 1}]::${type}`).join(', ');
  const isFurther = toPredicate(place.after === null ? '$2::text[] is null' : `(${columns}) > (${after})`);
  const [row] = await connection.rows(
    unpreparedStatement<{ deleted: number; last: string[] | null }>(
      `with batch as (
         select ctid, ${columns}
         from ${name}
         where organization_id = $1 and ${isFurther}
         order by ${columns}
         limit $3
       ), gone as (
         delete from ${name}
         where organization_id = $1 and ctid = any (array(select ctid from batch))
         returning 1
       )
       select (select count(*)::integer from gone) as deleted,
         (
           select array[${key.map(({ column }) => `${column}::text`).join(', ')}]
           from batch
           order by ${key.map(({ column }) => `${column} desc`).join(', ')}
           limit 1
         ) as last`,
    ),
    [organizationId, place.after, rowsMax],
  );
  const last = row?.last ?? null;
  return { deleted: row?.deleted ?? 0, next: last && { after: last, page: 0 } };
}

/** 8 MB: with more, a statement would wait longer for a slow disk; with fewer, a large table takes more statements. */
const pagesAtOnce = 1_024;

/** What a failed deletion of rows comes to: `again` as it is, `fewer` rows at once, or there is no such table any more. */
export function explainFailure(cause: unknown): 'again' | 'fewer' | 'gone' | 'unknown' {
  if (isConflict(cause)) return 'again';
  if (isStatementTimeout(cause)) return 'fewer';
  return isUndefinedTable(cause) ? 'gone' : 'unknown';
}

/** It has no name any more either. */
export async function endDeletion(
  connection: Connection,
  organizationId: string,
  endedAt: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `update organizations
       set deletion = 'gone', name = 'deleted', updated_at = $2
       where id = $1 and deletion = 'under_way'`,
    ),
    [organizationId, endedAt],
  );
}

/** Rows of organizations whose deletion ended before that. */
export async function deleteGoneOrganizations(connection: Connection, before: Date): Promise<void> {
  await connection.rows(
    unpreparedStatement(`delete from organizations where deletion = 'gone' and updated_at < $1`),
    [before],
  );
}

/** How many rows of an organization each table has, counted up to `most`, by the index of its primary key. */
export async function countRowsUpTo<Table extends string>(
  connection: Connection,
  organizationId: string,
  { tables, most }: { tables: readonly Table[]; most: number },
): Promise<Record<Table, number>> {
  const counts = tables.map(
    (table) =>
      `(select count(*)::integer from (select from ${table} where organization_id = $1 limit $2) seen) as ${table}`,
  );
  const [row] = await connection.rows(
    unpreparedStatement<Record<Table, number>>(`select ${counts.join(', ')}`),
    [organizationId, most],
  );
  if (row === undefined) throw new Error('a select without from returns one row');
  return row;
}
