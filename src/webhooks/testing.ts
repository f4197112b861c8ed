import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Database } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import type { WebhookAttempt, WebhookSender } from './attempt.ts';
import { openSecrets, secretsAt } from './endpoint-secrets.ts';
import { type EventType, objectOf } from './event-types.ts';
import { writeEvent } from './formats.ts';
import * as store from './store.ts';

export type TestingTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  secrets: Secrets;
  openSender: () => Promise<WebhookSender>;
};

/**
 * Tells an endpoint of an event that did not happen, once, whatever state it is in. It is in no log, and `test` in its data, or
 * in the event where that has none, says what it is. Null if there is no such endpoint.
 */
export async function testWebhook(
  { database, clock, newId, secrets, openSender }: TestingTools,
  key: store.WebhookKey,
  type: EventType,
): Promise<{ eventId: string; attempt: WebhookAttempt } | null> {
  const found = await database.asOrganizations([key.organizationId], async (transaction) => {
    const webhook = await store.findWebhook(transaction, key);
    const sealed = await store.findSecrets(transaction, key);
    if (typeof webhook?.url !== 'string' || sealed === null) return null;
    return { url: webhook.url, headers: webhook.headers, format: webhook.format, sealed };
  });
  if (found === null) return null;
  const at = now(clock);
  const eventId = newId();
  const event = {
    id: eventId,
    type,
    timestamp: at.toISOString(),
    sequence: 0,
    data: { object: objectOf(type), id: newId(), test: true },
  };
  const sender = await openSender();
  const attempt = await sender.attempt({
    endpointId: key.id,
    url: found.url,
    headers: found.headers,
    id: eventId,
    body: writeEvent(found.format, event),
    secrets: secretsAt(openSecrets(secrets, key.id, found.sealed), at),
  });
  return { eventId, attempt };
}
