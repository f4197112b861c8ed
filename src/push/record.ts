import type { PushFailure } from '../channels/push/provider.ts';
import { pushPlatforms, type PushPlatform } from '../channels/push/notification.ts';
import { type PushAddress, readPushAddress } from './address.ts';
import { type MessageRow, showLabels, showScheduledAt } from '../messages/messages.ts';
import {
  type DeviceFate,
  deviceFates,
  type ListedPushRecord,
  type PushDeviceRecord,
  type PushRecord,
  type PushStatus,
} from './schema.ts';
import type { CountedFates, PushRecipientRow } from './store.ts';
import type { StoredPushContent, StoredPushDetails } from './stored.ts';

export type PushRow = MessageRow & { content: unknown };

export function showPush(row: PushRow, recipients: readonly PushRecipientRow[]): PushRecord {
  return { ...showContent(row), devices: recipients.map(showDevice), ...showTimes(row) };
}

export function showListedPush(row: PushRow, counted: CountedFates): ListedPushRecord {
  const none = Object.fromEntries(deviceFates.map((fate) => [fate, 0])) as Record<DeviceFate, number>;
  return { ...showContent(row), device_counts: { ...none, ...counted }, ...showTimes(row) };
}

function showContent(row: PushRow) {
  const content = row.content as Partial<StoredPushContent> | null; // As send.ts stored them.
  const { contact_id: contactId } = row.details as StoredPushDetails;
  return {
    id: row.id,
    contact_id: contactId ?? null,
    title: content?.title ?? null,
    body: content?.body ?? null,
    image_url: content?.image_url ?? null,
    icon_url: content?.icon_url ?? null,
    deep_link: content?.deep_link ?? null,
    android_channel_id: content?.android_channel_id ?? null,
    category: row.category,
    ...showLabels(row.details),
    ttl_seconds: content?.ttl_seconds ?? null,
    priority: content?.priority ?? null,
    action_buttons: (content?.action_buttons ?? []).map((button) => ({
      ...button,
      deep_link: button.deep_link ?? null,
    })),
    data_payload: content?.data_payload ?? {},
    status: row.status as PushStatus, // Of the statuses that channel.ts gives to pushes.
  };
}

function showTimes(row: MessageRow) {
  return {
    scheduled_at: showScheduledAt(row),
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

function showDevice(row: PushRecipientRow): PushDeviceRecord {
  const address = readPushAddress(row.address);
  return {
    device_id: address?.deviceId ?? null,
    platform: address && platformOf(address),
    status: row.fate,
    error: describeError(row),
    uncertain: row.uncertain,
    attempted_at: row.handed_off_at?.toISOString() ?? null,
    delivered_at: row.delivered_at?.toISOString() ?? null,
    displayed_at: row.displayed_at?.toISOString() ?? null,
    clicked_at: row.clicked_at?.toISOString() ?? null,
    dismissed_at: row.dismissed_at?.toISOString() ?? null,
    action_id: row.action_id,
  };
}

export function platformOf({ account }: PushAddress): PushPlatform | null {
  return pushPlatforms.find((platform) => account.startsWith(platform)) ?? null;
}

const sentences: Readonly<Record<PushFailure, string>> = {
  unregistered: 'The app was removed from the device, or its token was replaced.',
  invalid_token: 'The token or endpoint is none that the credentials can reach.',
  invalid_message: 'The service refused the push as it was.',
  message_too_large: 'The push was larger than the service takes.',
  rate_limited: 'The service took no more pushes.',
  credentials: 'The service did not take the credentials of the organization.',
  expired: 'It could not be handed over before its time was over.',
  other: 'The service refused the push.',
};

function describeError(row: PushRecipientRow): PushDeviceRecord['error'] {
  if (row.drop_reason === 'unsubscribed')
    return { code: 'opted_out', message: 'The contact opted out of push; nothing was sent.' };
  if (row.drop_reason !== null)
    return { code: 'device_inactive', message: 'The device was not active any more; nothing was sent.' };
  if (
    row.failure_class === null ||
    (row.fate !== 'failed' && row.fate !== 'expired' && row.fate !== 'queued')
  )
    return null;
  const sentence = sentences[row.failure_class as PushFailure] ?? sentences.other;
  return {
    code: row.failure_class,
    message: row.diagnostic === null ? sentence : `${sentence} (${row.diagnostic})`,
  };
}
