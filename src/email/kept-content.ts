import { notFound, overloaded, PublicError } from '../platform/http/errors.ts';
import type { Database } from '../platform/postgres/database.ts';
import { createShares } from '../platform/shares.ts';
import {
  findMessage,
  listRecipients,
  measureContent,
  messageNotFound,
  type MessageRow,
  readContentText,
  type ReadHorizon,
  type RecipientRow,
} from '../messages/messages.ts';

/** An email with what it says, in JSON as send.ts stored it. */
export type KeptEmail = { message: MessageRow; content: string; recipients: readonly RecipientRow[] };

export type KeptContents = {
  /**
   * Reads an email for `use`, and holds a share of the memory for contents until that is done. `use` gets an error instead if
   * there is no such email, or if its content is not kept any more. Throws a PublicError if there is no room.
   */
  read: <Result>(
    wanted: { organizationId: string; id: string },
    use: (email: KeptEmail | PublicError) => Promise<Result>,
  ) => Promise<Result>;
};

/** Contents that are read at the same time, of all organizations; each takes several times as much. An email has 30 MB at most. */
const defaultBytesMax = 96 * 1_048_576;

export function createKeptContents({
  database,
  readHorizon,
  bytesMax = defaultBytesMax,
}: {
  database: Database;
  readHorizon: ReadHorizon;
  /** Smaller in tests. */
  bytesMax?: number;
}): KeptContents {
  const room = createShares(bytesMax);
  return {
    read: async ({ organizationId, id }, use) => {
      const key = { organizationId, messageId: id };
      const found = await database.asOrganizations([organizationId], async (transaction) => {
        const horizon = await readHorizon(transaction, organizationId);
        const message = await findMessage(transaction, { organizationId, id, channel: 'email', horizon });
        if (message === null) return messageNotFound(horizon, id);
        const isKept = horizon.contentFrom === null || message.id >= horizon.contentFrom;
        const bytes = isKept ? await measureContent(transaction, key) : null;
        if (bytes === null) return contentGone();
        return { message, bytes, recipients: await listRecipients(transaction, organizationId, [id]) };
      });
      if (found instanceof PublicError) return use(found);
      const share = room.take(organizationId, found.bytes);
      if (share === null) throw overloaded('Too much content is being read at the moment.');
      try {
        const content = await database.asOrganizations([organizationId], (transaction) =>
          readContentText(transaction, key),
        );
        return await use(content === null ? contentGone() : { ...found, content });
      } finally {
        share.release();
      }
    },
  };
}

function contentGone(): PublicError {
  return new PublicError(
    notFound,
    'What this email said is not kept any more: its time is over, or a contact that it went to was deleted.',
  );
}
