import { type Clock, dateOf, now } from '../platform/clock.ts';
import { badRequest, defineError, PublicError } from '../platform/http/errors.ts';
import type { NewId } from '../platform/ids.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { lockName } from '../platform/postgres/name-locks.ts';
import type { Secrets } from '../platform/secrets.ts';
import { lockCursor, noteUntold, refreshNextTry, retryNow } from './delivery-store.ts';
import { openSecrets, sealSecrets } from './endpoint-secrets.ts';
import type { WebhookBody, WebhookPatch } from './schema.ts';
import { createWebhookSecret } from './signature.ts';
import * as store from './store.ts';

export type WebhookTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  secrets: Secrets;
  /** Told where an endpoint may have something to be told at once. */
  onUntold: () => void;
};

export const webhooksMax = 20;

export const webhookLimitReached = defineError(
  400,
  'webhook_limit_reached',
  `An organization has at most ${webhooksMax} webhooks.`,
);

const defaultConcurrency = 5;

/** The secret is null where there is nothing to be signed. Throws a PublicError where there are as many as there may be. */
export async function createWebhook(
  { database, clock, newId, secrets, onUntold }: WebhookTools,
  organizationId: string,
  body: WebhookBody,
): Promise<{ webhook: store.WebhookRow; secret: string | null }> {
  const key = { organizationId, id: newId() };
  const secret = body.kind === 'url' ? (body.secret ?? createWebhookSecret()) : null;
  const webhook = await database.asOrganizations([organizationId], async (transaction) => {
    await lockInterests(transaction, organizationId);
    if ((await store.countWebhooks(transaction, organizationId, webhooksMax)) === webhooksMax) {
      throw new PublicError(
        webhookLimitReached,
        `There are ${webhooksMax} webhooks, which is the most. Delete one first.`,
      );
    }
    await store.insertWebhook(transaction, {
      ...key,
      kind: body.kind,
      url: body.url ?? null,
      events: body.events,
      campaign_events: body.campaign_events ?? 'none',
      format: body.format ?? 'full',
      description: body.description ?? null,
      headers: body.headers ?? {},
      concurrency: body.concurrency ?? defaultConcurrency,
      secretsSealed: secret === null ? null : sealSecrets(secrets, key.id, [{ secret, endsAt: null }]),
      at: now(clock),
    });
    if (secret !== null) {
      await store.insertCursor(transaction, key);
      // What is being numbered at this moment may lie behind the cursor, and did not see it.
      await noteUntold(transaction, organizationId);
    }
    await store.refreshInterests(transaction, organizationId);
    return findCreated(transaction, key);
  });
  if (secret !== null) onUntold();
  return { webhook, secret };
}

async function findCreated(transaction: Transaction, key: store.WebhookKey): Promise<store.WebhookRow> {
  const webhook = await store.findWebhook(transaction, key);
  if (webhook === null) throw new Error('a webhook that was just written is there');
  return webhook;
}

/** Null if there is no such webhook. */
export async function updateWebhook(
  { database, clock }: WebhookTools,
  key: store.WebhookKey,
  patch: WebhookPatch,
): Promise<store.WebhookRow | null> {
  return database.asOrganizations([key.organizationId], async (transaction) => {
    await lockInterests(transaction, key.organizationId);
    const before = await store.findWebhook(transaction, key);
    if (before === null) return null;
    const ofEndpoints = [patch.url, patch.headers, patch.concurrency, patch.format];
    if (before.kind === 'poll' && ofEndpoints.some((field) => field !== undefined)) {
      throw new PublicError(
        badRequest,
        'A webhook that is read from the log has no url, headers, concurrency or format.',
      );
    }
    const { description = before.description, ...others } = patch;
    await store.saveWebhook(transaction, key, { ...before, ...others, description }, now(clock));
    await store.refreshInterests(transaction, key.organizationId);
    return store.findWebhook(transaction, key);
  });
}

/** Returns whether there was one. */
export async function deleteWebhook({ database }: WebhookTools, key: store.WebhookKey): Promise<boolean> {
  return database.asOrganizations([key.organizationId], async (transaction) => {
    await lockInterests(transaction, key.organizationId);
    await lockCursor(transaction, key);
    const isDeleted = await store.deleteWebhook(transaction, key);
    await store.refreshInterests(transaction, key.organizationId);
    return isDeleted;
  });
}

/** It is told nothing, and what happens waits. Null if there is no such webhook. */
export async function pauseWebhook(
  { database, clock }: WebhookTools,
  key: store.WebhookKey,
): Promise<store.WebhookRow | null> {
  return database.asOrganizations([key.organizationId], async (transaction) => {
    await lockCursor(transaction, key);
    await store.saveStatus(transaction, key, 'paused', now(clock));
    await refreshNextTry(transaction, key);
    return store.findWebhook(transaction, key);
  });
}

/** It is told again, at once, however it failed before. Null if there is no such webhook. */
export async function enableWebhook(
  { database, clock, onUntold }: WebhookTools,
  key: store.WebhookKey,
  options: { fromNow: boolean },
): Promise<store.WebhookRow | null> {
  const webhook = await database.asOrganizations([key.organizationId], async (transaction) => {
    const at = now(clock);
    await lockCursor(transaction, key);
    await store.saveStatus(transaction, key, 'enabled', at);
    await store.resetCursor(transaction, key, options);
    await retryNow(transaction, key, at);
    await refreshNextTry(transaction, key);
    await noteUntold(transaction, key.organizationId);
    return store.findWebhook(transaction, key);
  });
  onUntold();
  return webhook;
}

/** The new secret, and until when the one before signs too. Null if there is no such endpoint. */
export async function rotateSecret(
  { database, clock, secrets }: WebhookTools,
  key: store.WebhookKey,
  { secret = createWebhookSecret(), expireAfterHours }: { secret?: string; expireAfterHours: number },
): Promise<{ secret: string; previousEndsAt: Date } | null> {
  return database.asOrganizations([key.organizationId], async (transaction) => {
    const sealed = await store.findSecrets(transaction, key);
    if (sealed === null) return null;
    const [before] = openSecrets(secrets, key.id, sealed);
    if (before === undefined) throw new Error('an endpoint has a secret');
    const at = now(clock);
    const previousEndsAt = dateOf(at.getTime() + expireAfterHours * 3_600_000);
    // One that is replaced before its time signs no more: whoever rotates twice wants it gone.
    const own = [
      { secret, endsAt: null },
      { secret: before.secret, endsAt: previousEndsAt.getTime() },
    ];
    await store.saveSecrets(transaction, key, sealSecrets(secrets, key.id, own), at);
    return { secret, previousEndsAt };
  });
}

/** What is wanted follows from all webhooks of an organization: two changes at once take turns. */
async function lockInterests(transaction: Transaction, organizationId: string): Promise<void> {
  await lockName(transaction, `webhooks ${organizationId}`);
}
