import type { FailureClass } from '../channels/outcome.ts';
import type { EmailRecipientRecord, EmailRecord, MessageStatus } from './schema.ts';
import type { FateRow, MessageRow, RecipientRow } from './store.ts';
import type { RecipientField, StoredEmailDetails } from './submission.ts';

/** An email as the API shows it: every submitted address, each with its latest status. */
export function showEmail(message: MessageRow, recipients: readonly RecipientRow[]): EmailRecord {
  const details = message.details as StoredEmailDetails; // As email-send.ts stored it.
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
    to: inField('to'),
    cc: inField('cc'),
    bcc: inField('bcc'),
    attachments: details.attachments.map(({ filename, contentType, sizeBytes, contentId }) => ({
      filename,
      content_type: contentType,
      size: sizeBytes,
      content_id: contentId,
    })),
    status: message.status as MessageStatus, // Of the statuses that status.ts gives to emails.
    created_at: message.created_at.toISOString(),
    updated_at: message.updated_at.toISOString(),
  };
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

/** What else is known of a recipient, of whatever message. */
export function showFate(row: FateRow) {
  return {
    uncertain: row.uncertain,
    bounce:
      row.failure_type === null
        ? null
        : {
            type: row.failure_type,
            class: row.failure_class as FailureClass, // Written by deliver.ts from the same union.
            smtp_code: row.smtp_code,
            enhanced_code: row.enhanced_code,
            diagnostic: row.diagnostic,
            remote_mta: row.remote,
          },
    opened_at: row.opened_at?.toISOString() ?? null,
    clicked_at: row.clicked_at?.toISOString() ?? null,
  };
}
