import { type Bound, type Connection, type Statement, statement } from '../platform/postgres/database.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import type { MessageChannel } from './channel.ts';
import { messageColumns, type MessageKey } from './keys.ts';

const lockMessages = statement(
  'messages_lock',
  `select
   from messages m
   join unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, id)
     on ${hasKeyOf('m', 'wanted', ['id'])}
   order by wanted.organization_id, wanted.id
   for no key update of m`,
);

/**
 * Locks messages until the transaction ends: otherwise two workers that finish the last two recipients of a message at
 * the same moment could both see it as unfinished. The locks are always taken in the order of the ids.
 */
export async function lockMessagesOf(connection: Connection, messages: readonly MessageKey[]): Promise<void> {
  if (messages.length === 0) return;
  await connection.rows(lockMessages, messageColumns(messages));
}

/**
 * Updates the status of messages of one channel from their recipients. Each message may be named once. Messages of
 * campaigns are left alone: they have no status, and too many recipients.
 */
export async function refreshMessages(
  connection: Connection,
  channel: MessageChannel,
  messages: readonly MessageKey[],
  at: Date,
): Promise<void> {
  if (messages.length === 0) return;
  const { statement: refresh, values } = refreshmentOf(channel, messages, at);
  await connection.rows(refresh, values);
}

/** The same for statements that are sent at once; of one message at least. */
export function refreshmentOf(
  { refreshStatus }: MessageChannel,
  messages: readonly MessageKey[],
  at: Date,
): Bound<unknown> {
  return { statement: refreshStatus, values: [...messageColumns(messages), at] };
}

/**
 * The statement that brings the status of messages of a channel up to date. `statusOfRecipients` is SQL over the rows
 * of a message's recipients `r`, as an aggregate. Parameters: organizations, messages, the time.
 */
export function defineMessageStatus(channel: string, statusOfRecipients: string): Statement<unknown> {
  return statement(
    `messages_refresh_status_${channel}`,
    `update messages m
     set status = fresh.status, updated_at = $3
     from (
       select changed.organization_id, changed.message_id, of_recipients.status
       from unnest($1::uuid[], $2::uuid[]) as changed (organization_id, message_id)
       -- The limit makes each of these a search by key, one for each message, whatever size the planner expects of the
       -- tables.
       cross join lateral (
         select
         from messages of_class
         where ${hasKeyOf('of_class', 'changed', [['id', 'message_id']])}
           -- With "= 'transactional'" the planner could choose the index on status, which is slow here.
           and of_class.class <> 'campaign'
         limit 1
       ) of_class
       cross join lateral (
         select ${statusOfRecipients} as status
         from recipients r
         where ${hasKeyOf('r', 'changed', ['message_id'])}
         having count(*) > 0
       ) of_recipients
     ) fresh
     where ${hasKeyOf('m', 'fresh', [['id', 'message_id']])}`,
  );
}
