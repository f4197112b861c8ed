import type { PushContent } from '../channels/push/notification.ts';
import type { Values } from '../channels/placeholders.ts';
import type { StoredLabels } from '../messages/messages.ts';
import { dateOf } from '../platform/clock.ts';
import type { PushContentBody } from './schema.ts';

/** Details of a push that the API shows. */
export type StoredPushDetails = StoredLabels & {
  /** Gone once the contact was erased. */
  contact_id?: string;
};

/** What a push says, by the names of the API. For a campaign, before placeholders are filled for each contact. */
export type StoredPushContent = PushContentBody & { defaults?: Values };

/** How long a service stores a push for a device that is offline where the request does not say: four weeks, the most. */
export const defaultTtlSeconds = 2_419_200;

export function toPushContent(stored: PushContentBody): PushContent {
  return {
    title: stored.title,
    body: stored.body,
    imageUrl: stored.image_url ?? null,
    iconUrl: stored.icon_url ?? null,
    deepLink: stored.deep_link ?? null,
    androidChannelId: stored.android_channel_id ?? null,
    priority: stored.priority ?? null,
    actionButtons: (stored.action_buttons ?? []).map((button) => ({
      actionId: button.action_id,
      label: button.label,
      deepLink: button.deep_link ?? null,
    })),
    dataPayload: stored.data_payload ?? {},
  };
}

/** After this time nothing is handed off; services are told what is left of it. */
export function expiryOf(
  acceptedAt: Date,
  { ttl_seconds: ttlSeconds = defaultTtlSeconds }: StoredPushContent,
): Date {
  return dateOf(acceptedAt.getTime() + ttlSeconds * 1_000);
}
