import { type EmailItem, prepareEmails, readEmails, showEmailBody } from '../email/email.ts';
import { parseAddress } from '../channels/email/email.ts';
import type { BatchReader, ItemKey } from '../messages/messages.ts';
import type { ThreadTask } from '../platform/http/body-threads.ts';
import { badRequest, type ErrorDefinition, PublicError, validationError } from '../platform/http/errors.ts';
import { readIdempotencyKey } from '../platform/http/idempotency.ts';
import { findUnstorableValues } from '../platform/http/json-text.ts';
import { sha256 } from '../platform/secrets.ts';
import { translateMessage } from './translation.ts';

/** A message as it arrived, with the recipients of its envelope. */
export type Message = { source: Uint8Array | readonly Uint8Array[]; recipients: readonly string[]; at: Date };

/** It can be sent between threads. */
export type ReadMessage =
  | { kind: 'read'; item: EmailItem; key: MessageKey | null; shownBody: string | null }
  | { kind: 'refused'; definition: ErrorDefinition; message: string; shownBody: string | null };

/** `shown` is the key as its program knows it: that of its option, or its Message-ID. */
export type MessageKey = ItemKey & { by: 'option' | 'message_id'; shown: string };

/** What the log may show of a message is made of those that are read at once: others are large. */
export function readMessage(message: Message): ReadMessage {
  return readBy(readEmails, message, showEmailBody);
}

/** `readMessage` in the thread for large bodies. */
export const readMessageTask: ThreadTask<Message, ReadMessage> = {
  name: 'read submitted message',
  run: (message) => readBy(prepareEmails, message, () => null),
};

function readBy(
  read: BatchReader<EmailItem>,
  { source, recipients, at }: Message,
  show: (body: object) => string | null,
): ReadMessage {
  const whole = source instanceof Uint8Array ? [source] : source;
  const translation = translateMessage(Buffer.concat(whole), recipients);
  if (translation.kind === 'untranslatable')
    return { kind: 'refused', definition: badRequest, message: translation.problem, shownBody: null };
  const { body, idempotencyKey, messageId } = translation;
  const keyed = chooseKey(idempotencyKey, messageId, recipients);
  if (keyed instanceof PublicError)
    return { kind: 'refused', definition: keyed.definition, message: keyed.message, shownBody: show(body) };
  const unstorable = findUnstorableValues({ ...body, attachments: null });
  const [item] = read([{ ...body, ...(keyed !== null && { idempotency_key: keyed.key }) }], {
    at,
    settings: {},
  });
  if (item === undefined) throw new Error('one item is read as one');
  const shownBody = show(body);
  switch (item.kind) {
    case 'bad_key':
      throw new Error('a key that was chosen is one');
    case 'invalid':
      return invalid([...unstorable, ...item.issues], shownBody);
    case 'read': {
      if (unstorable.length > 0) return invalid(unstorable, shownBody);
      const key =
        item.key === null || keyed === null ? null : { ...item.key, by: keyed.by, shown: keyed.shown };
      return { kind: 'read', item: item.body, key, shownBody };
    }
  }
}

function invalid(issues: readonly string[], shownBody: string | null): ReadMessage {
  return { kind: 'refused', definition: validationError, message: issues.join(', '), shownBody };
}

/**
 * By a Message-ID a message is the same to the same people: a mail server that has many recipients sends it in several
 * transactions, each to some of them.
 */
function chooseKey(
  idempotencyKey: string | null,
  messageId: string | null,
  recipients: readonly string[],
): { key: string; by: MessageKey['by']; shown: string } | PublicError | null {
  if (idempotencyKey !== null) {
    try {
      readIdempotencyKey(idempotencyKey);
      return { key: idempotencyKey, by: 'option', shown: idempotencyKey };
    } catch (cause) {
      if (cause instanceof PublicError) return cause;
      throw cause;
    }
  }
  if (messageId === null) return null;
  const people = recipients.map((recipient) => parseAddress(recipient)?.normalised ?? recipient).toSorted();
  const key = sha256([messageId, ...people].join('\n')).toString('hex');
  return { key, by: 'message_id', shown: messageId };
}
