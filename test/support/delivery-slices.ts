import type { Job } from '../../src/messages/channel.ts';
import { announcementOf, type Marker } from '../../src/messages/delivery/hand-off-store.ts';
import { type Connection, unpreparedStatement } from '../../src/platform/postgres/database.ts';

/**
 * Gives the recipients of all slices that wait rows of their own in the queue, as if a worker had given them back: for
 * tests that change what is there of single recipients.
 */
export async function spreadSlices(connection: Connection): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `with gone as (
         delete from delivery_slices where claimed_by is null returning *
       )
       insert into delivery_queue
         (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
       select gone.organization_id, gone.message_id, r.ordinal, gone.channel, gone.lane, gone.accepted_at,
         gone.accepted_at, gone.content_bytes
       from gone
       join recipients r on r.organization_id = gone.organization_id and r.message_id = gone.message_id
         and r.ordinal between gone.first_ordinal and gone.last_ordinal
       where r.drop_reason is null and r.address <> ''`,
    ),
  );
}

/** Whether the worker was still there. */
export async function announceHandOffs(
  connection: Connection,
  jobs: readonly Job[],
  marker: Marker,
): Promise<boolean> {
  const { statement, values } = announcementOf(jobs, marker);
  return (await connection.rows(statement, values)).length > 0;
}

/** Numbers batches of markers as a lease does. */
export function countBatches(): () => number {
  let last = 0;
  return () => (last += 1);
}
