import {
  type CompiledEmail,
  compileEmail,
  type EmailContent,
  fillEmail,
  listChunks,
  parseAddress,
} from '../channels/email/email.ts';
import type { Database } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import { attachmentContext } from './accept.ts';
import { type DeliverableMessage, type Job, loadSealedAttachments } from './queue-store.ts';
import type { StoredEmailContent, StoredEmailDetails } from './submission.ts';

/** An email that is built once for all of its recipients. */
export type BuiltEmail = {
  compiled: CompiledEmail;
  envelopeFrom: string;
  /** About what it takes in memory. */
  sizeBytes: number;
  facts: { isShared: boolean; hasAttachments: boolean };
};

export async function buildEmail(
  tools: { database: Database; secrets: Secrets },
  message: DeliverableMessage,
): Promise<BuiltEmail> {
  const details = message.details as StoredEmailDetails; // As email-send.ts stored them.
  const stored = message.content as StoredEmailContent;
  const hasAttachments = details.attachments.length > 0;
  const sealed = hasAttachments ? await loadSealedAttachments(tools.database, message) : [];
  const from = parseAddress(message.sender);
  if (from === null) throw new Error('a sender that was accepted is an address');

  const content: EmailContent = {
    // Fixed at acceptance, like the date: a retry is the same message to the octet, and can be recognised as one.
    messageId: `${message.messageId}@${from.domain}`,
    date: message.createdAt,
    from: { address: message.sender, name: details.fromName },
    replyTo: details.replyTo,
    to: stored.to,
    cc: stored.cc,
    subject: message.subject,
    html: stored.html,
    text: stored.text,
    attachments: details.attachments.map((attachment, ordinal) => ({
      ...attachment,
      content: unseal(tools.secrets, message.messageId, ordinal, sealed[ordinal]),
    })),
    headers: [],
  };
  const compiled = compileEmail(content, { personalised: message.isPersonalised });
  return {
    compiled,
    envelopeFrom: from.envelope,
    sizeBytes: compiled.body.reduce((sum, piece) => sum + lengthOf(piece), 1),
    facts: { isShared: message.recipientCount > 1, hasAttachments },
  };
}

function lengthOf(piece: CompiledEmail['body'][number]): number {
  return typeof piece === 'string' || piece instanceof Uint8Array ? piece.length : piece.written.length;
}

function unseal(secrets: Secrets, messageId: string, ordinal: number, sealed: Buffer | undefined): Buffer {
  if (sealed === undefined) throw new Error(`attachment ${ordinal} of message ${messageId} is not stored`);
  return secrets.decrypt(sealed, attachmentContext(messageId, ordinal));
}

/** The copy of one recipient, in chunks. */
export function fillFor(built: BuiltEmail, job: Job): Uint8Array[] | 'too_large' {
  const filled = fillEmail(built.compiled, job.variables ?? {});
  return filled === 'too_large' ? filled : listChunks(filled);
}

/** The address as SMTP wants it. */
export function envelopeRecipientOf(job: Job): string {
  const address = parseAddress(job.address);
  if (address === null) throw new Error('a recipient that was accepted is an address');
  return address.envelope;
}
