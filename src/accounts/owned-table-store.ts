import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';

/** A table with rows of organizations, or a partition of one. Names are quoted as SQL needs it, but for that in `table`. */
export type OwnedTable = {
  name: string;
  /** The table that the schema has: that of which it is a partition, or itself. */
  table: string;
  columns: string[];
  /** The columns of its primary key, which begins with `organization_id`; null where it does not. */
  key: { column: string; type: string }[] | null;
  pages: number;
};

/**
 * Every table that has a column `organization_id`, partitions one by one, the smallest first: what chores and pages look at
 * is gone long before the messages are. From the catalogue, so that no table is forgotten.
 */
export async function listOwnedTables(connection: Connection): Promise<OwnedTable[]> {
  return connection.rows(
    unpreparedStatement<OwnedTable>(
      `select c.oid::regclass::text as name,
         coalesce(parent.relname, c.relname)::text as "table",
         (
           select array_agg(quote_ident(each.attname) order by each.attnum)
           from pg_attribute each
           where each.attrelid = c.oid and each.attnum > 0 and not each.attisdropped
         ) as columns,
         case when keyed.columns -> 0 ->> 'column' = 'organization_id' then keyed.columns end as key,
         (pg_relation_size(c.oid) / current_setting('block_size')::bigint)::integer as pages
       from pg_class c
       join pg_attribute a on a.attrelid = c.oid and a.attname = 'organization_id' and not a.attisdropped
       left join pg_inherits i on i.inhrelid = c.oid
       left join pg_class parent on parent.oid = i.inhparent
       left join lateral (
         select json_agg(
           json_build_object('column', quote_ident(k.attname), 'type', format_type(k.atttypid, k.atttypmod))
           order by position
         ) as columns
         from pg_index i
         cross join lateral unnest(i.indkey) with ordinality as part (number, position)
         join pg_attribute k on k.attrelid = c.oid and k.attnum = part.number
         where i.indrelid = c.oid and i.indisprimary
       ) keyed on true
       where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r'
       order by pages, name`,
    ),
  );
}
