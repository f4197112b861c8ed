import { type Connection, statement, unpreparedStatement } from '../../platform/postgres/database.ts';
import { deleteOldRows } from '../../platform/postgres/old-rows.ts';

export type FateCounts = { sent: number; bounced: number; complained: number };

const upsertCounts = statement(
  'reputation_add',
  `insert into reputation_counts as c (organization_id, hour, shard, sent, bounced, complained)
   select organization_id, date_trunc('hour', $1::timestamptz, 'UTC'), $2, sent, bounced, complained
   from unnest($3::uuid[], $4::integer[], $5::integer[], $6::integer[])
     as addition (organization_id, sent, bounced, complained)
   order by organization_id
   on conflict (organization_id, hour, shard) do update
   set sent = c.sent + excluded.sent, bounced = c.bounced + excluded.bounced,
     complained = c.complained + excluded.complained`,
);

/** Sorted, so that transactions that count the same organizations cannot deadlock. */
export async function addFates(
  connection: Connection,
  addition: { at: Date; shard: number; counts: ReadonlyMap<string, FateCounts> },
): Promise<void> {
  const counts = [...addition.counts.values()];
  await connection.rows(upsertCounts, [
    addition.at,
    addition.shard,
    [...addition.counts.keys()],
    counts.map(({ sent }) => sent),
    counts.map(({ bounced }) => bounced),
    counts.map(({ complained }) => complained),
  ]);
}

/** Sums the counts since that time. There is one row for each hour and shard, found by the primary key. */
export async function sumFates(
  connection: Connection,
  organizationId: string,
  since: Date,
): Promise<FateCounts> {
  const [row] = await connection.rows(
    unpreparedStatement<FateCounts>(
      `select
         coalesce(sum(sent), 0)::integer as sent,
         coalesce(sum(bounced), 0)::integer as bounced,
         coalesce(sum(complained), 0)::integer as complained
       from reputation_counts
       where organization_id = $1 and hour > $2`,
    ),
    [organizationId, since],
  );
  return row ?? { sent: 0, bounced: 0, complained: 0 };
}

/** Deletes the counts, so that counting starts at zero. */
export async function forgetFates(connection: Connection, organizationId: string): Promise<void> {
  await connection.rows(unpreparedStatement('delete from reputation_counts where organization_id = $1'), [
    organizationId,
  ]);
}

/** Uses the index reputation_counts_hour, and skips rows that another node is deleting. */
const deleteOld = unpreparedStatement(
  `with old as (
     select organization_id, hour, shard
     from reputation_counts
     where hour < $1
     limit $2
     for update skip locked
   )
   delete from reputation_counts c
   using old
   where c.organization_id = old.organization_id and c.hour = old.hour and c.shard = old.shard
   returning true as is_deleted`,
);

export async function deleteOldFates(connection: Connection, before: Date, rowsMax?: number): Promise<void> {
  await deleteOldRows(connection, deleteOld, before, rowsMax);
}
