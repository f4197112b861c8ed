import { type Connection, statement } from '../platform/postgres/database.ts';
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
 * Holds messages until the transaction ends, so that two workers that finish the last two recipients of one at the
 * same moment do not both take it for unfinished. Always taken in the order of the ids.
 */
export async function lockMessagesOf(connection: Connection, messages: readonly MessageKey[]): Promise<void> {
  if (messages.length === 0) return;
  await connection.rows(lockMessages, messageColumns(messages));
}

/**
 * Brings the status of messages of a channel, each named once, up to date with their recipients; campaigns have none, and too many
 * of those.
 */
export async function refreshMessages(
  connection: Connection,
  { refreshStatus }: MessageChannel,
  messages: readonly MessageKey[],
  at: Date,
): Promise<void> {
  if (messages.length === 0) return;
  await connection.rows(refreshStatus, [...messageColumns(messages), at]);
}
