import type { EmailContentRecord, EmailRecipientRecord, EmailRecord } from './schema.ts';
import {
  type MessageRow,
  type MessageStatus,
  type RecipientField,
  type RecipientRow,
  showFate,
  showLabels,
  showScheduledAt,
} from '../messages/messages.ts';
import type { StoredAttachment, StoredEmailContent, StoredEmailDetails } from './stored.ts';

/** An email as the API shows it, with the latest status of every submitted address. */
export function showEmail(message: MessageRow, recipients: readonly RecipientRow[]): EmailRecord {
  const details = message.details as StoredEmailDetails; // As send.ts stored it.
  const inField = (field: RecipientField) =>
    recipients.filter((row) => row.field === field).map(showRecipient);
  return {
    id: message.id,
    from: message.sender,
    from_name: details.fromName,
    reply_to: details.replyTo,
    subject: message.subject,
    template_id: message.template_id,
    category: message.category,
    ...showLabels(details),
    resent_from: details.resentFrom ?? null,
    to: inField('to'),
    cc: inField('cc'),
    bcc: inField('bcc'),
    attachments: details.attachments.map(showAttachment),
    status: message.status as MessageStatus, // Of the statuses that status.ts gives to emails.
    scheduled_at: showScheduledAt(message),
    created_at: message.created_at.toISOString(),
    updated_at: message.updated_at.toISOString(),
  };
}

/** An email with what it says, in JSON as send.ts stored it. */
export type ShownContent = {
  message: Pick<MessageRow, 'id' | 'sender' | 'subject' | 'details'>;
  content: string;
};

/** What an email says, as the API shows it. */
export function showContent({ message, content }: ShownContent): EmailContentRecord {
  const details = message.details as StoredEmailDetails; // As send.ts stored both.
  const { to, cc, html, text, headers = {} } = JSON.parse(content) as StoredEmailContent;
  return {
    id: message.id,
    from: message.sender,
    from_name: details.fromName,
    reply_to: details.replyTo,
    to,
    cc,
    subject: message.subject,
    html,
    text,
    headers: { ...headers },
    attachments: details.attachments.map(showAttachment),
  };
}

function showAttachment({ filename, contentType, sizeBytes, contentId }: StoredAttachment) {
  return { filename, content_type: contentType, size: sizeBytes, content_id: contentId };
}

function showRecipient(row: RecipientRow): EmailRecipientRecord {
  return {
    email: row.address === '' ? null : row.address,
    status: row.status,
    status_at: row.status_at.toISOString(),
    dropped: row.drop_reason !== null,
    drop_reason: row.drop_reason,
    ...showFate(row),
  };
}
