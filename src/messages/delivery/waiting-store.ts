import { channels, type SendingChannel } from '../../channels/channel.ts';
import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';

/** Organizations looked at on all channels together. With fewer, late jobs of others may hide; more take longer. */
const organizationsMax = 1_000;

/** Jobs of these lanes are claimed by workers; those of the third wait for a campaign that is paused. */
type LaneKey = { channel: SendingChannel; lane: 'transactional' | 'campaign' };

function laneOf({ channel, lane }: { channel: SendingChannel; lane: number }): LaneKey {
  return { channel, lane: lane === 0 ? 'transactional' : 'campaign' };
}

/**
 * SQL: the first job of each organization that no worker has claimed, by channel and lane, of the channels in `$1`. A loose
 * scan over the index delivery_queue_due: a row for each organization.
 */
const withActiveOrganizations = `with recursive active (channel, lane, organization_id, due_at) as (
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
)`;

/**
 * Since when the first job in the queue has been due that no worker has claimed, by channel and lane, where any is.
 * Recipients of campaigns that nobody has tried yet are not counted.
 */
export async function listOldestDue(
  connection: Connection,
  at: Date,
): Promise<(LaneKey & { dueAt: Date })[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ channel: SendingChannel; lane: number; due_at: Date }>(
      `${withActiveOrganizations}
       select channel, lane, min(due_at) as due_at
       from (select channel, lane, due_at from active limit $2) seen
       where due_at <= $3
       group by channel, lane
       order by channel, lane`,
    ),
    [channels, organizationsMax, at],
  );
  return rows.map((row) => ({ ...laneOf(row), dueAt: row.due_at }));
}

/** The same of all channels and lanes together; null if no job is due. */
export async function findOldestDue(connection: Connection, at: Date): Promise<Date | null> {
  const oldest = await listOldestDue(connection, at);
  return oldest.reduce<Date | null>(
    (first, { dueAt }) => (first === null || dueAt < first ? dueAt : first),
    null,
  );
}

export type WaitingJobs = LaneKey & { waiting: number; due: number };

/**
 * How many jobs no worker has claimed, and how many of them are due, by channel and lane; what waits for a time of its own is
 * not counted before that. Of each organization no more than `most` that are due are looked at in the queue, and as many that
 * are not, by the index delivery_queue_due, and as many slices of campaigns, by delivery_slices_due: a long queue must not
 * take long to count. Recipients in slices are due.
 */
export async function countWaiting(connection: Connection, at: Date, most: number): Promise<WaitingJobs[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ channel: SendingChannel; lane: number; waiting: number; due: number }>(
      `${withActiveOrganizations}, queued as (
         select seen.channel, seen.lane, sum(due.jobs) as due, sum(due.jobs + later.jobs) as waiting
         from (select channel, lane, organization_id from active limit $4) seen
         cross join lateral (
           select count(*) as jobs
           from (
             select
             from delivery_queue q
             where q.channel = seen.channel and q.lane = seen.lane and q.organization_id = seen.organization_id
               and q.due_at <= $2 and q.claimed_by is null and q.set_aside_at is null
             limit $3
           ) counted
         ) due
         cross join lateral (
           select count(*) filter (where not counted.is_cancellable) as jobs
           from (
             select q.is_cancellable
             from delivery_queue q
             where q.channel = seen.channel and q.lane = seen.lane and q.organization_id = seen.organization_id
               and q.due_at > $2 and q.claimed_by is null and q.set_aside_at is null
             order by q.due_at
             limit $3
           ) counted
         ) later
         group by seen.channel, seen.lane
       )
       select known.channel, lanes.lane,
         least(coalesce(queued.waiting, 0), $3)::bigint + sliced.recipients as waiting,
         least(coalesce(queued.due, 0), $3)::bigint + sliced.recipients as due
       from unnest($1::text[]) as known (channel)
       cross join unnest(array[0, 1]::smallint[]) as lanes (lane)
       left join queued on queued.channel = known.channel and queued.lane = lanes.lane
       cross join lateral (
         select coalesce(sum(seen.recipients), 0)::bigint as recipients
         from (
           select slice.recipients
           from delivery_slices slice
           where slice.channel = known.channel and slice.lane = lanes.lane and slice.claimed_by is null
           order by slice.organization_id, slice.accepted_at, slice.first_ordinal
           limit $3
         ) seen
       ) sliced
       order by known.channel, lanes.lane`,
    ),
    [channels, at, most, organizationsMax],
  );
  return rows.map((row) => ({ ...laneOf(row), waiting: row.waiting, due: row.due }));
}

/** How much waits for a worker, due or not: jobs, and slices of campaigns. Not counted beyond `max`. */
export async function countQueued(connection: Connection, max: number): Promise<number> {
  const [row] = await connection.rows(
    unpreparedStatement<{ queued: number }>(
      `select count(*) as queued
       from (
         select from delivery_queue where set_aside_at is null
         union all
         select from delivery_slices
         limit $1
       ) waiting`,
    ),
    [max],
  );
  return row?.queued ?? 0;
}

/** Whether a worker has claimed hand-offs of an organization. By the primary keys, through all that it has queued. */
export async function hasClaims(connection: Connection, organizationId: string): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `(select from delivery_queue where organization_id = $1 and claimed_by is not null limit 1)
       union all
       (select from delivery_slices where organization_id = $1 and claimed_by is not null limit 1)`,
    ),
    [organizationId],
  );
  return rows.length > 0;
}
