import { parseAddress } from '../channels/email/email.ts';
import { conflict, PublicError } from '../platform/http/errors.ts';
import { largeBodyBytesMin, type TaskRunner, type ThreadTask } from '../platform/http/body-threads.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';
import type { Submission } from '../messages/messages.ts';
import type { KeptEmail } from './kept-content.ts';
import { markDuplicates, namedIn, readNamed, type Recipient } from './send.ts';
import type { StoredEmailContent, StoredEmailDetails } from './stored.ts';

export type ResendRequest = {
  organizationId: string;
  email: KeptEmail;
  /** Whom it goes to now; null for the same recipients. */
  to: readonly string[] | null;
  idempotencyKey: ScopedKey | null;
};

/**
 * Makes a new email of what was sent before: it is accepted as any other, and says the same. Returns the error if it cannot
 * be sent again.
 */
export async function prepareResent(
  runner: TaskRunner,
  { organizationId, email, to, idempotencyKey }: ResendRequest,
): Promise<Submission | PublicError> {
  const { message } = email;
  const details = message.details as StoredEmailDetails; // As send.ts stored it.
  if (details.attachments.length > 0) return attachmentsGone();
  const sender = parseAddress(message.sender);
  if (sender === null) throw new Error('a sender that was accepted is an address');
  const recipients =
    to === null
      ? email.recipients.map(recipientOf)
      : to.map((address): Recipient => ({ field: 'to', ...readNamed(address) }));
  return {
    organizationId,
    channel: 'email',
    class: 'transactional',
    sender: message.sender,
    senderName: sender.domain,
    subject: message.subject,
    searchText: message.subject,
    category: message.category,
    templateId: message.template_id,
    tags: details.tags,
    details: JSON.stringify({ ...details, resentFrom: message.id } satisfies StoredEmailDetails),
    content: to === null ? email.content : await readdress(runner, email.content, namedIn('to', recipients)),
    recipients: markDuplicates(recipients),
    attachments: [],
    quotaUnits: recipients.length,
    missingVariables: [],
    warnings: [],
    idempotencyKey,
  };
}

function attachmentsGone(): PublicError {
  return new PublicError(
    conflict,
    'Files are kept only until an email is finished, so that one with attachments cannot be sent again. Send a new one.',
  );
}

function recipientOf({ field, address }: KeptEmail['recipients'][number]): Recipient {
  const email = parseAddress(address);
  if (email === null) throw new Error('a recipient that was accepted is an address');
  return { field, name: null, email };
}

type Readdressing = { content: string; to: string[] };

async function readdress(runner: TaskRunner, content: string, to: string[]): Promise<string | Uint8Array> {
  return content.length < largeBodyBytesMin
    ? readdressed({ content, to })
    : runner.run(readdressEmailTask, { content, to });
}

function readdressed({ content, to }: Readdressing): string {
  const stored = JSON.parse(content) as StoredEmailContent; // As send.ts stored it.
  return JSON.stringify({ ...stored, to, cc: [] } satisfies StoredEmailContent);
}

/** Gives a large content other recipients. */
export const readdressEmailTask: ThreadTask<Readdressing, Uint8Array> = {
  name: 'readdress email',
  run: (input) => new TextEncoder().encode(readdressed(input)),
};
