import type { EventType } from '../webhooks/webhooks.ts';

/**
 * What people are told of, each by an email of its own. They are called like the events behind them; `webhook.failing` waits
 * until the endpoint has failed for a while.
 */
export const alertKinds = [
  'webhook.failing',
  'webhook.disabled',
  'domain.degraded',
  'organization.sending_suspended',
  'organization.sending_resumed',
  'organization.quota_warning',
  'organization.quota_reached',
  'chatapp.template.paused',
  'chatapp.template.rejected',
  'campaign.paused',
] as const satisfies readonly EventType[];

export type AlertKind = (typeof alertKinds)[number];

export function isAlertKind(type: string): type is AlertKind {
  return (alertKinds as readonly string[]).includes(type);
}
