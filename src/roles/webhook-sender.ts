import type { Installation } from '../installation/installation.ts';
import { createAllowedHosts } from '../platform/outbound/allowed-hosts.ts';
import { createWebhookSender } from '../webhooks/webhooks.ts';

/**
 * What sends webhooks, by the settings of the installation. Many are sent at once, to names whose servers may be slow: a
 * worker has a resolver for them alone.
 */
export function createSenderOf({
  config,
  clock,
  resolver,
}: Pick<Installation, 'config' | 'clock' | 'resolver'>): ReturnType<typeof createWebhookSender> {
  return createWebhookSender({ clock, resolver, allowed: createAllowedHosts(config.webhookAllowedHosts) });
}
