import {
  type Connection,
  type Database,
  statement,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { inOneRoundTrip } from '../../platform/postgres/round-trip.ts';
import { concatInSteps, runInSteps, stepBytesMax } from '../../platform/steps.ts';
import { messageColumns, type MessageKey } from '../keys.ts';

export type DeliverableMessage = MessageKey & {
  sender: string;
  subject: string | null;
  category: string | null;
  details: unknown;
  content: unknown;
  recipientCount: number;
  /** Placeholders are filled with each recipient's own values. */
  isPersonalised: boolean;
  createdAt: Date;
};

const selectDeliverable = statement<{
  organization_id: string;
  id: string;
  sender: string;
  subject: string | null;
  category: string | null;
  details: unknown;
  content: unknown;
  recipient_count: number;
  is_personalised: boolean;
  created_at: Date;
}>(
  'messages_select_deliverable',
  `select m.organization_id, m.id, m.sender, m.subject, m.category, m.details, c.content, m.recipient_count,
     m.class = 'campaign' as is_personalised, m.created_at
   from unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, id)
   -- The limit makes each a search by its own key: all three ids are equal, and the planner might join them in any
   -- order.
   cross join lateral (
     select * from messages where ${hasKeyOf('messages', 'wanted', ['id'])} limit 1
   ) m
   cross join lateral (
     select content from message_contents c where ${hasKeyOf('c', 'wanted', [['message_id', 'id']])} limit 1
   ) c`,
);

export async function loadDeliverableMessages(
  database: Database,
  messages: readonly MessageKey[],
): Promise<DeliverableMessage[]> {
  const rows = await inOneRoundTrip(database, selectDeliverable, messageColumns(messages));
  return rows.map((row) => ({
    organizationId: row.organization_id,
    messageId: row.id,
    sender: row.sender,
    subject: row.subject,
    category: row.category,
    details: row.details,
    content: row.content,
    recipientCount: row.recipient_count,
    isPersonalised: row.is_personalised,
    createdAt: row.created_at,
  }));
}

const selectSealedBeginnings = unpreparedStatement<{ ordinal: number; bytes: number; beginning: Buffer }>(
  `select ordinal, octet_length(sealed) as bytes, substring(sealed from 1 for $3) as beginning
   from attachment_contents
   where organization_id = $1 and message_id = $2
   order by ordinal`,
);

/** The column is stored uncompressed and in chunks, so only the requested part is read. */
const selectSealedPart = unpreparedStatement<{ part: Buffer }>(
  `select substring(sealed from $4 for $5) as part
   from attachment_contents
   where organization_id = $1 and message_id = $2 and ordinal = $3`,
);

/**
 * The sealed attachments of a message, in their order. If one is deleted in the meantime, it and those after it are
 * left out. Large ones are read in parts, since the value of a row is converted in one piece.
 */
export async function loadSealedAttachments(connection: Connection, message: MessageKey): Promise<Buffer[]> {
  const { organizationId, messageId } = message;
  const rows = await connection.rows(selectSealedBeginnings, [organizationId, messageId, stepBytesMax]);
  const attachments: Buffer[] = [];
  for (const { ordinal, bytes, beginning } of rows) {
    const parts = [beginning];
    for (let read = beginning.length; read < bytes; read += stepBytesMax) {
      const key = [organizationId, messageId, ordinal];
      const [row] = await connection.rows(selectSealedPart, [...key, read + 1, stepBytesMax]);
      if (row === undefined) return attachments;
      parts.push(row.part);
    }
    attachments.push(parts.length === 1 ? beginning : await runInSteps(concatInSteps(parts)));
  }
  return attachments;
}

const selectFirstSealed = statement<{ message_id: string; sealed: Buffer }>(
  'messages_select_first_sealed',
  `select a.message_id, a.sealed
   from unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, message_id)
   join attachment_contents a on ${hasKeyOf('a', 'wanted', ['message_id'])} and a.ordinal = 0`,
);

/**
 * The first sealed attachment of each of these messages, by the message: for channels on which it is a few bytes. The
 * transaction should plan by indexes.
 */
export async function loadFirstAttachments(
  connection: Connection,
  messages: readonly MessageKey[],
): Promise<Map<string, Buffer>> {
  const rows = await connection.rows(selectFirstSealed, messageColumns(messages));
  return new Map(rows.map((row) => [row.message_id, row.sealed]));
}

const deleteAttachments = statement(
  'messages_delete_attachments',
  `delete from attachment_contents a
   using unnest($1::uuid[], $2::uuid[]) as finished (organization_id, message_id)
   where ${hasKeyOf('a', 'finished', ['message_id'])}
     and not exists (
       select from delivery_queue q
       where ${hasKeyOf('q', 'finished', ['message_id'])}
     )`,
);

/** Removes the sealed attachments of those of the messages that have no job in the queue any more. */
export async function deleteFinishedAttachments(
  connection: Connection,
  messages: readonly MessageKey[],
): Promise<void> {
  if (messages.length === 0) return;
  await connection.rows(deleteAttachments, messageColumns(messages));
}
