import { codeParameter, type TemplateCategory } from '../channels/chatapp/template.ts';
import type { ChatAppFailure } from '../channels/chatapp/provider.ts';
import { showLabels, showScheduledAt } from '../messages/messages.ts';
import { redacted } from './parameters.ts';
import type { ChatAppRecord, ChatAppStatus } from './schema.ts';
import type { ChatAppRow } from './store.ts';
import type { StoredChatAppContent, StoredChatAppDetails } from './stored.ts';

/** A chat-app message as the API shows it. */
export function showChatApp(row: ChatAppRow): ChatAppRecord {
  const details = row.details as StoredChatAppDetails; // As send.ts stored them.
  const content = row.content as StoredChatAppContent | null;
  const category = row.category as TemplateCategory; // Every message has one: that of its template.
  return {
    id: row.id,
    to: row.address === '' ? null : row.address,
    contact_id: details.contact_id ?? null,
    template_id: row.template_id,
    template: details.template,
    language: details.language,
    category,
    ...showLabels(details),
    parameters: category === 'authentication' ? { [codeParameter]: redacted } : (content?.parameters ?? {}),
    status: row.status as ChatAppStatus, // Of the statuses that channel.ts gives to chat-app messages.
    error: describeError(row),
    uncertain: row.uncertain,
    scheduled_at: showScheduledAt(row),
    created_at: row.created_at.toISOString(),
    sent_at: row.handed_off_at?.toISOString() ?? null,
    delivered_at: row.delivered_at?.toISOString() ?? null,
    read_at: row.opened_at?.toISOString() ?? null,
    updated_at: row.updated_at.toISOString(),
  };
}

/** Of what has failed, and of what waits to be tried again. */
const sentences: Readonly<Record<ChatAppFailure, string>> = {
  unreachable: 'The number is not on the chat app, or its app cannot receive this message.',
  blocked: 'The recipient does not want it, or the provider chose not to deliver it to them.',
  template_unavailable: 'The template cannot be sent.',
  sender_rejected: 'The provider does not let this account send the message.',
  invalid_message: 'The message could not be sent as it is.',
  rate_limited: 'The provider took no more messages.',
  expired: 'It could not be handed over before its time was over.',
  other: 'The provider did not take the message.',
};

function describeError(row: ChatAppRow): ChatAppRecord['error'] {
  // It objected before any attempt, or after a deferred one.
  if (row.drop_reason === 'contact_deleted')
    return { code: 'contact_deleted', message: 'The contact was deleted; nothing was sent.' };
  if (row.drop_reason === 'unreachable')
    return {
      code: 'unreachable' satisfies ChatAppFailure,
      message:
        'The chat app refused the number three times within 30 days, and nothing has ever arrived there; nothing was sent.',
    };
  if (row.drop_reason !== null || row.failure_class === 'policy') {
    return {
      code: 'opted_out',
      message: 'The recipient has opted out of chat-app messages, or was suppressed; nothing was sent.',
    };
  }
  // Of a message that went on, the stored failure is that of an earlier attempt.
  if (row.failure_class === null || (row.status !== 'failed' && row.status !== 'queued')) return null;
  const sentence = sentences[row.failure_class as ChatAppFailure] ?? sentences.other;
  return {
    code: row.failure_class,
    message: row.diagnostic === null ? sentence : `${sentence} (${row.diagnostic})`,
  };
}
