import type { Channel } from '../channels/channel.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Connection, Database } from '../platform/postgres/database.ts';
import * as store from './store.ts';

export { isWelcome, type SandboxAccess, sandboxToken } from './visitor.ts';

/** What a sandbox provider was given. */
export type KeptMessage = {
  organizationId: string;
  channel: Channel;
  messageId: string;
  /** Of the recipient in its message. */
  ordinal: number;
  recipient: string;
  sender: string;
  outcome: string;
  /** For email, the whole message as it would have left. */
  source: Buffer;
};

/** Resolves once the message is stored. */
export async function keepMessage(
  tools: { database: Database; clock: Clock; newId: NewId },
  message: KeptMessage,
): Promise<void> {
  await store.insertSandboxMessage(tools.database, {
    ...message,
    id: tools.newId(),
    createdAt: now(tools.clock),
  });
}

/** The inbox is for looking at what was just sent, and not an archive. */
const messagesMax = 10_000;

export async function tidySandbox(database: Database): Promise<void> {
  await store.deleteOldSandboxMessages(database, messagesMax);
}

/** Deletes the copies that were kept of these messages. */
export async function forgetMessages(
  connection: Connection,
  organizationId: string,
  messageIds: readonly string[],
): Promise<void> {
  if (messageIds.length > 0) await store.deleteSandboxMessages(connection, organizationId, messageIds);
}

/** The same of all messages with an id in a range, of whatever organization. */
export async function forgetMessagesWithin(
  connection: Connection,
  range: { from: string | null; before: string },
): Promise<void> {
  await store.deleteSandboxMessagesWithin(connection, range);
}

/** Deletes the copies of messages that were kept of one recipient each, found by its ordinal. */
export async function forgetCopies(
  connection: Connection,
  organizationId: string,
  copies: readonly { messageId: string; ordinal: number }[],
): Promise<void> {
  if (copies.length > 0) await store.deleteSandboxCopies(connection, organizationId, copies);
}
