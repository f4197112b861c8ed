import type { SendingChannel } from '../channels/channel.ts';
import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { type RecipientKey, recipientKey } from './keys.ts';

export type ScheduledKey = { organizationId: string; id: string; channel: SendingChannel };

export type ScheduledRow = { status: string; scheduled_at: Date | null; created_at: Date };

/**
 * Locks a message of no campaign, as whoever changes its status does, before its jobs; null if there is none. By the
 * primary key.
 */
export async function lockMessage(
  connection: Connection,
  { organizationId, id, channel }: ScheduledKey,
): Promise<ScheduledRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<ScheduledRow>(
      `select status, scheduled_at, created_at
       from messages
       where organization_id = $1 and id = $2 and channel = $3 and class <> 'campaign'
       for no key update`,
    ),
    [organizationId, id, channel],
  );
  return row ?? null;
}

/**
 * Takes the jobs of a message out of the queue whose hand-off was not announced, claimed or not, and returns the ordinals.
 * Competes with claims, and with workers that have their jobs depart (delivery/departure-store.ts), in whose order the rows
 * are locked. By the primary key.
 */
export async function deleteCancellable(
  connection: Connection,
  { organizationId, id }: Pick<ScheduledKey, 'organizationId' | 'id'>,
): Promise<number[]> {
  const rows = await connection.rows(
    unpreparedStatement<{ ordinal: number }>(
      `with cancelled as (
         select ordinal
         from delivery_queue
         where organization_id = $1 and message_id = $2 and is_cancellable
         order by ordinal
         for update
       )
       delete from delivery_queue q
       using cancelled
       where q.organization_id = $1 and q.message_id = $2 and q.ordinal = cancelled.ordinal
       returning q.ordinal`,
    ),
    [organizationId, id],
  );
  return rows.map(({ ordinal }) => ordinal);
}

/** Where a recipient is. `left`: its hand-off was announced; null: it gets nothing, and was not cancelled. */
export type RecipientEnd = { address: string; end: 'cancelled' | 'left' | null };

/** Of all recipients of a message from whose queue everything was taken that had not left, in their order. */
export async function listEnds(
  connection: Connection,
  { organizationId, id }: Pick<ScheduledKey, 'organizationId' | 'id'>,
): Promise<RecipientEnd[]> {
  return connection.rows(
    unpreparedStatement<RecipientEnd>(
      `select address,
         case
           when status = 'cancelled' then 'cancelled'
           when drop_reason is null and not (status = 'failed' and handed_off_at is null) then 'left'
         end as "end"
       from recipients
       where organization_id = $1 and message_id = $2
       order by ordinal`,
    ),
    [organizationId, id],
  );
}

/** Whether all jobs of a message, of which there is one at least, wait for their time. They are locked. By the primary key. */
export async function lockWaiting(
  connection: Connection,
  { organizationId, id }: Pick<ScheduledKey, 'organizationId' | 'id'>,
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement<{ is_waiting: boolean }>(
      `select is_cancellable and claimed_by is null and set_aside_at is null as is_waiting
       from delivery_queue
       where organization_id = $1 and message_id = $2
       order by ordinal
       for update`,
    ),
    [organizationId, id],
  );
  return rows.length > 0 && rows.every(({ is_waiting: isWaiting }) => isWaiting);
}

/** Its jobs must be locked. */
export async function moveMessage(
  connection: Connection,
  { organizationId, id }: Pick<ScheduledKey, 'organizationId' | 'id'>,
  { scheduledAt, at }: { scheduledAt: Date; at: Date },
): Promise<void> {
  await Promise.all([
    connection.rows(
      unpreparedStatement(
        `update delivery_queue
         set due_at = $3, accepted_at = $3
         where organization_id = $1 and message_id = $2`,
      ),
      [organizationId, id, scheduledAt],
    ),
    connection.rows(
      unpreparedStatement(
        `update messages
         set scheduled_at = $3, updated_at = $4
         where organization_id = $1 and id = $2`,
      ),
      [organizationId, id, scheduledAt, at],
    ),
  ]);
}

/**
 * So many recipients with this address at most, of messages before one of that id, that wait for their time. By the index
 * recipients_address; the jobs are looked up one by one, by the primary key.
 */
export async function listScheduledOf(
  connection: Connection,
  wanted: { organizationId: string; addressKey: string; beforeMessageId: string },
  limit: number,
): Promise<(RecipientKey & { channel: SendingChannel })[]> {
  const { organizationId, addressKey, beforeMessageId } = wanted;
  const rows = await connection.rows(
    unpreparedStatement<{ message_id: string; ordinal: number; channel: SendingChannel }>(
      `select r.message_id, r.ordinal, q.channel
       from recipients r
       cross join lateral (
         select q.channel
         from delivery_queue q
         where q.organization_id = $1 and q.message_id = r.message_id and q.ordinal = r.ordinal and q.is_cancellable
         offset 0
       ) q
       where r.organization_id = $1 and r.address_key = $2 and r.message_id < $3
         and r.status = 'sent' and r.handed_off_at is null and r.drop_reason is null
       order by r.message_id, r.ordinal
       limit $4`,
    ),
    [organizationId, addressKey, beforeMessageId, limit],
  );
  return rows.map(({ message_id: messageId, ordinal, channel }) => ({
    organizationId,
    messageId,
    ordinal,
    channel,
  }));
}

const deleteCancellableJobs = statement<{ message_id: string; ordinal: number }>(
  'queue_delete_cancellable',
  `with wanted as materialized (
     select $1::uuid as organization_id, message_id, ordinal
     from unnest($2::uuid[], $3::integer[]) as given (message_id, ordinal)
     order by message_id, ordinal
   ), cancelled as (
     select job.organization_id, job.message_id, job.ordinal
     from wanted
     -- Each by its own key, as those that depart: the queue of the organization may be long.
     cross join lateral (
       select organization_id, message_id, ordinal
       from delivery_queue
       where ${hasKeyOf('delivery_queue', 'wanted', recipientKey)} and is_cancellable
       for update
     ) job
   )
   delete from delivery_queue q
   using cancelled
   where ${hasKeyOf('q', 'cancelled', recipientKey)}
   returning q.message_id, q.ordinal`,
);

/** Takes these jobs out of the queue, as far as their hand-off was not announced, and returns their recipients. */
export async function deleteJobs(
  connection: Connection,
  organizationId: string,
  jobs: readonly RecipientKey[],
): Promise<RecipientKey[]> {
  const rows = await connection.rows(deleteCancellableJobs, [
    organizationId,
    jobs.map(({ messageId }) => messageId),
    jobs.map(({ ordinal }) => ordinal),
  ]);
  return rows.map(({ message_id: messageId, ordinal }) => ({ organizationId, messageId, ordinal }));
}
