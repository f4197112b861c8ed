import { channels } from '../../channels/channel.ts';
import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';

/** Organizations looked at on all channels together. With fewer, late jobs of others may hide; more take longer. */
const organizationsMax = 1_000;

/**
 * Since when the first job in the queue has been due that no worker has claimed; null if none is. Recipients of campaigns
 * that nobody has tried yet are not counted. A loose scan over the index delivery_queue_due: a row for each organization.
 */
export async function findOldestDue(connection: Connection, at: Date): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ due_at: Date | null }>(
      `with recursive active (channel, lane, organization_id, due_at) as (
         select first.channel, first.lane, first.organization_id, first.due_at
         from unnest($1::text[]) as known (channel)
         cross join unnest(array[0, 1]::smallint[]) as lanes (lane)
         cross join lateral (
           select q.channel, q.lane, q.organization_id, q.due_at
           from delivery_queue q
           where q.channel = known.channel and q.lane = lanes.lane and q.claimed_by is null and q.set_aside_at is null
           order by q.organization_id, q.due_at
           limit 1
         ) first
         union all
         select next.channel, next.lane, next.organization_id, next.due_at
         from active
         cross join lateral (
           select q.channel, q.lane, q.organization_id, q.due_at
           from delivery_queue q
           where q.channel = active.channel and q.lane = active.lane and q.claimed_by is null and q.set_aside_at is null
             and q.organization_id > active.organization_id
           order by q.organization_id, q.due_at
           limit 1
         ) next
       )
       select min(due_at) as due_at
       from (select due_at from active limit $2) seen
       where due_at <= $3`,
    ),
    [channels, organizationsMax, at],
  );
  return row?.due_at ?? null;
}
