import { type Clock, now } from '../platform/clock.ts';
import type { Database } from '../platform/postgres/database.ts';
import { lockCursor, tryBy } from './delivery-store.ts';
import { readLog } from './log.ts';
import { replayedMax } from './schema.ts';
import * as store from './store.ts';

export type ReplayTools = { database: Database; clock: Clock; onUntold: () => void };

/**
 * Has an endpoint told once more of a part of the log, or of what was given up there, at once and at most `replayedMax`
 * positions of it; `next` is where to go on. Null if there is no such endpoint.
 */
export async function replayEvents(
  { database, clock, onUntold }: ReplayTools,
  key: store.WebhookKey,
  { from, to, onlyFailed }: { from: number; to: number; onlyFailed: boolean },
): Promise<{ count: number; next: number | null } | null> {
  const replayed = await database.asOrganizations([key.organizationId], async (transaction) => {
    const webhook = await store.findWebhook(transaction, key);
    if (webhook?.kind !== 'url') return null;
    const at = now(clock);
    const end = Math.min(to, from + replayedMax - 1);
    const next = end < to ? end + 1 : null;
    await lockCursor(transaction, key);
    if (onlyFailed) {
      const count = await store.retryFailed(transaction, key, { from, to: end, at });
      if (count > 0) await tryBy(transaction, key, at);
      return { count, next };
    }
    const { events, extent } = await readLog(transaction, {
      organizationId: key.organizationId,
      from,
      to: end,
      patterns: webhook.events,
      campaignEvents: webhook.campaign_events,
      limit: replayedMax,
    });
    if (events.length > 0) {
      await store.insertReplayed(transaction, key, events, at);
      await tryBy(transaction, key, at);
    }
    return { count: events.length, next: end >= extent.last ? null : next };
  });
  if (replayed !== null && replayed.count > 0) onUntold();
  return replayed;
}

/** Has an event told once more. Null if there is no such endpoint, or it has no delivery of it. */
export async function retryDelivery(
  { database, clock, onUntold }: ReplayTools,
  key: store.WebhookKey,
  eventId: string,
): Promise<store.DeliveryRow | null> {
  const delivery = await database.asOrganizations([key.organizationId], async (transaction) => {
    const webhook = await store.findWebhook(transaction, key);
    if (webhook?.kind !== 'url') return null;
    const at = now(clock);
    await lockCursor(transaction, key);
    const retried = await store.retryDelivery(transaction, key, { eventId, at });
    if (retried !== null) await tryBy(transaction, key, at);
    return retried;
  });
  if (delivery !== null) onUntold();
  return delivery;
}
