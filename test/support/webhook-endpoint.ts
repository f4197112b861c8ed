/** An endpoint that wants everything, as its row and its cursor, without the routes that make one. */
import type { Connection } from '../../src/platform/postgres/database.ts';
import { insertCursor, insertWebhook, type WebhookKey } from '../../src/webhooks/store.ts';

export async function insertEndpoint(connection: Connection, key: WebhookKey): Promise<void> {
  await insertWebhook(connection, {
    ...key,
    kind: 'url',
    url: 'https://hooks.example/',
    events: ['*'],
    campaign_events: 'none',
    format: 'full',
    description: null,
    headers: {},
    concurrency: 5,
    secretsSealed: Buffer.from('sealed'),
    at: new Date(),
  });
  await insertCursor(connection, key);
}
