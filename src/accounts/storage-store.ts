import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import type { OwnedTable } from './owned-table-store.ts';
import type { StorageUsage } from './schema.ts';

/** Returns whether measuring may begin; nobody else's then does until `nextAt`. */
export async function claimMeasuring(connection: Connection, at: Date, nextAt: Date): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `insert into storage_measuring as m (next_at)
       values ($2)
       on conflict (is_only_row) do update
       set next_at = excluded.next_at
       where m.next_at <= $1
       returning m.next_at`,
    ),
    [at, nextAt],
  );
  return rows.length > 0;
}

export async function putOffMeasuring(connection: Connection, nextAt: Date): Promise<void> {
  await connection.rows(unpreparedStatement('update storage_measuring set next_at = $1'), [nextAt]);
}

/** Of a row and its place in the page: a header of 23 bytes, rounded up, and a pointer of 4. */
const rowBytes = 28;

/**
 * What the rows in some pages of a table take, by organization. As it is stored: of a value that stands elsewhere, such as
 * an attachment, the size is known without reading it. A page is read once for all organizations.
 */
export async function measurePages(
  connection: Connection,
  { name, columns }: OwnedTable,
  pages: { from: number; to: number },
): Promise<{ organizationId: string; bytes: number }[]> {
  const sizes = columns.map((column) => `coalesce(pg_column_size(${column}), 0)`).join(' + ');
  return connection.rows(
    unpreparedStatement<{ organizationId: string; bytes: number }>(
      `select organization_id as "organizationId", sum(${rowBytes} + ${sizes}) as bytes
       from ${name}
       where ctid >= $1::text::tid and ctid < $2::text::tid and organization_id is not null
       group by organization_id`,
    ),
    [`(${pages.from},0)`, `(${pages.to},0)`],
  );
}

/** Of all organizations, those without anything as well; of none that is being deleted, since its rows must not come back. */
export async function saveUsage(
  connection: Connection,
  measured: ReadonlyMap<string, Pick<StorageUsage, 'bytes' | 'bytesByKind'>>,
  measuredAt: Date,
): Promise<void> {
  const usages = [...measured.values()];
  await connection.rows(
    unpreparedStatement(
      `insert into storage_usage (organization_id, bytes, bytes_by_kind, measured_at)
       select o.id, coalesce(measured.bytes, 0), coalesce(measured.bytes_by_kind::jsonb, '{}'), $4
       from organizations o
       left join unnest($1::uuid[], $2::bigint[], $3::text[]) as measured (organization_id, bytes, bytes_by_kind)
         on measured.organization_id = o.id
       where o.deletion is null
       order by o.id
       on conflict (organization_id) do update
       set bytes = excluded.bytes, bytes_by_kind = excluded.bytes_by_kind, measured_at = excluded.measured_at`,
    ),
    [
      [...measured.keys()],
      usages.map(({ bytes }) => bytes),
      usages.map(({ bytesByKind }) => JSON.stringify(bytesByKind)),
      measuredAt,
    ],
  );
}
