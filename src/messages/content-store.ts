import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import type { MessageKey } from './keys.ts';

const selectLength = unpreparedStatement<{ bytes: number }>(
  'select octet_length(content::text) as bytes from message_contents where organization_id = $1 and message_id = $2',
);

/** How many bytes of JSON the content of a message has; null if it is not kept. */
export async function measureContent(connection: Connection, message: MessageKey): Promise<number | null> {
  const [row] = await connection.rows(selectLength, [message.organizationId, message.messageId]);
  return row?.bytes ?? null;
}

const selectText = unpreparedStatement<{ content: string }>(
  'select content::text from message_contents where organization_id = $1 and message_id = $2',
);

/** The content of a message as it is stored, unread; null if it is not kept. */
export async function readContentText(connection: Connection, message: MessageKey): Promise<string | null> {
  const [row] = await connection.rows(selectText, [message.organizationId, message.messageId]);
  return row?.content ?? null;
}
