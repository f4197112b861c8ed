import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import type { PartitionRange } from '../platform/postgres/partitions.ts';
import { type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import type { MessageChannels } from './channel.ts';

/** Partitioned by the ids of messages: what goes together, in the order in which the tables are locked elsewhere. */
export function listMessageTables(channels: MessageChannels): string[] {
  const ofChannels = Object.values(channels).flatMap(({ tables = [] }) => tables);
  return ['messages', 'message_tags', 'message_contents', 'recipients', ...ofChannels];
}

export const contentTables = ['message_contents'] as const;

/** SQL for what keeps messages besides the queue: that they are sent by something which is not over. */
export type MessageKeeper = {
  /** Whether it keeps the message, given SQL for the organization and the id. */
  isKept: (organizationId: string, messageId: string) => Predicate;
  /** Whether it keeps any of a range, given SQL that is true of a `message_id` in it. Names the index that it reads. */
  areAnyKept: (isInRange: Predicate) => Predicate;
};

/**
 * SQL: whether a message is still under way, over its columns `organization_id` and id: it is kept, or some of its recipients
 * are in the queue, be it that they were set aside.
 */
const isUnderWay = ({ isKept }: MessageKeeper, organizationId: string, messageId: string) =>
  toPredicate(`(
  ${isKept(organizationId, messageId)}
  or exists (
    select from delivery_queue q where q.organization_id = ${organizationId} and q.message_id = ${messageId}
  )
  or exists (
    select from delivery_slices s where s.organization_id = ${organizationId} and s.message_id = ${messageId}
  )
)`);

/** SQL over the parameters of a `PartitionRange`. */
const isInRange = toPredicate('message_id < $2 and ($1::uuid is null or message_id >= $1)');

/**
 * Whether all messages of a range have come to their end. The two queues are read as a whole, and have few rows but for what
 * is due. What has ended does not begin again.
 */
export async function areAllOver(
  connection: Connection,
  { areAnyKept }: MessageKeeper,
  { from, before }: PartitionRange,
): Promise<boolean> {
  const [row] = await connection.rows(
    unpreparedStatement<{ are_over: boolean }>(
      `with kept_messages as (select ${areAnyKept(isInRange)} as are_any)
       select not are_any
         and not exists (select from delivery_queue where ${isInRange})
         and not exists (select from delivery_slices where ${isInRange}) as are_over
       from kept_messages`,
    ),
    [from, before],
  );
  return row?.are_over === true;
}

/** Whether the recipients of campaigns in a range are counted as they are, so that the counts can outlive them. */
export async function areAllCounted(
  connection: Connection,
  { from, before }: PartitionRange,
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      'select from recipient_changes where message_id < $2 and ($1::uuid is null or message_id >= $1) limit 1',
    ),
    [from, before],
  );
  return rows.length === 0;
}

/** `after` is the last message that was looked at. */
export type OldContents = { organizationId: string; before: string; after: string | null };

/**
 * Deletes what some messages of an organization say, the oldest first, but for those that are under way. Returns how many
 * were looked at, and the last of them. By the primary key.
 */
export async function deleteContentsBefore(
  connection: Connection,
  keeper: MessageKeeper,
  { organizationId, before, after }: OldContents,
  limit: number,
): Promise<{ seen: number; last: string | null }> {
  const [row] = await connection.rows(
    unpreparedStatement<{ seen: number; last: string | null }>(
      `with old as (
         select message_id
         from message_contents
         where organization_id = $1 and message_id < $2 and ($3::uuid is null or message_id > $3)
         order by message_id
         limit $4
       ), gone as (
         delete from message_contents
         where organization_id = $1 and message_id = any (array(select message_id from old))
           and not ${isUnderWay(keeper, '$1', 'message_contents.message_id')}
       )
       select count(*)::integer as seen, max(message_id::text) as last
       from old`,
    ),
    [organizationId, before, after, limit],
  );
  return row ?? { seen: 0, last: null };
}
