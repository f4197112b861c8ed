import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';

/**
 * From now on nobody is written to who was not yet. What a worker has claimed stays with it: it looks once more before
 * it hands anything off. At most a window of a campaign's recipients stands in the queue, a few thousand rows, found
 * by its primary key.
 */
export async function stopMessage(
  connection: Connection,
  message: { organizationId: string; messageId: string },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `with stopped as (
         update messages
         set is_stopped = true
         where organization_id = $1 and id = $2
       )
       delete from delivery_queue
       where organization_id = $1 and message_id = $2 and claimed_by is null`,
    ),
    [message.organizationId, message.messageId],
  );
}
