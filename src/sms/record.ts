import type { SmsFailure } from '../channels/sms/sms.ts';
import { showLabels, showScheduledAt } from '../messages/messages.ts';
import type { SmsRecord, SmsStatus } from './schema.ts';
import type { SmsRow } from './store.ts';
import type { StoredSmsContent, StoredSmsDetails } from './stored.ts';

/** A text as the API shows it. */
export function showSms(row: SmsRow): SmsRecord {
  const { encoding, segments } = row.details as StoredSmsDetails; // As send.ts stored them.
  const content = row.content as StoredSmsContent | null;
  return {
    id: row.id,
    from: row.sender,
    to: row.address === '' ? null : row.address,
    body: content?.text ?? null,
    category: row.category,
    ...showLabels(row.details),
    status: row.status as SmsStatus, // Of the statuses that status.ts gives to texts.
    encoding,
    segments,
    error: describeError(row),
    uncertain: row.uncertain,
    scheduled_at: showScheduledAt(row),
    created_at: row.created_at.toISOString(),
    sent_at: row.handed_off_at?.toISOString() ?? null,
    delivered_at: row.recipient_status === 'delivered' ? row.status_at.toISOString() : null,
    updated_at: row.updated_at.toISOString(),
  };
}

const sentences: Readonly<Record<SmsFailure, string>> = {
  unknown_subscriber: 'The number does not exist, or cannot receive texts.',
  unreachable: 'The phone was out of reach for too long.',
  blocked: 'The recipient or their carrier blocks texts from this sender.',
  spam: 'A filter of the carrier treated the text as spam.',
  sender_rejected: 'The provider does not let this sender send to this number.',
  invalid_message: 'The text could not be sent as it is.',
  rate_limited: 'The provider accepted no more texts.',
  expired: 'The text could not be delivered before its validity ended.',
  other: 'The provider refused the text.',
};

function describeError(row: SmsRow): SmsRecord['error'] {
  // The number opted out, before any attempt or after a deferred one.
  if (row.drop_reason !== null || row.failure_class === 'policy') {
    return {
      code: 'opted_out',
      message: 'The number has opted out of texts, or was suppressed; nothing was sent.',
    };
  }
  // For a delivered text the stored failure is that of an earlier attempt.
  if (row.failure_class === null || row.recipient_status === 'delivered') return null;
  const sentence = sentences[row.failure_class as SmsFailure] ?? sentences.other;
  return {
    code: row.failure_class,
    message: row.diagnostic === null ? sentence : `${sentence} (${row.diagnostic})`,
  };
}
