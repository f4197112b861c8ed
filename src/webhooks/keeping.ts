import { type Clock, now } from '../platform/clock.ts';
import { defineError, PublicError } from '../platform/http/errors.ts';
import type { NewId } from '../platform/ids.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { lockName } from '../platform/postgres/name-locks.ts';
import type { WebhookBody, WebhookPatch } from './schema.ts';
import * as store from './store.ts';

export type WebhookTools = { database: Database; clock: Clock; newId: NewId };

export const webhooksMax = 20;

export const webhookLimitReached = defineError(
  400,
  'webhook_limit_reached',
  `An organization has at most ${webhooksMax} webhooks.`,
);

/** Throws a PublicError where there are as many as there may be. */
export async function createWebhook(
  { database, clock, newId }: WebhookTools,
  organizationId: string,
  body: WebhookBody,
): Promise<store.WebhookRow> {
  return database.asOrganizations([organizationId], async (transaction) => {
    await lockInterests(transaction, organizationId);
    if ((await store.countWebhooks(transaction, organizationId, webhooksMax)) === webhooksMax) {
      throw new PublicError(
        webhookLimitReached,
        `There are ${webhooksMax} webhooks, which is the most. Delete one first.`,
      );
    }
    const created = await store.insertWebhook(transaction, {
      organizationId,
      id: newId(),
      kind: body.kind,
      events: body.events,
      campaign_events: body.campaign_events ?? 'none',
      description: body.description ?? null,
      at: now(clock),
    });
    await store.refreshInterests(transaction, organizationId);
    return created;
  });
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
    const { description = before.description, ...others } = patch;
    const after = await store.saveWebhook(
      transaction,
      key,
      { ...before, ...others, description },
      now(clock),
    );
    await store.refreshInterests(transaction, key.organizationId);
    return after;
  });
}

/** Returns whether there was one. */
export async function deleteWebhook({ database }: WebhookTools, key: store.WebhookKey): Promise<boolean> {
  return database.asOrganizations([key.organizationId], async (transaction) => {
    await lockInterests(transaction, key.organizationId);
    const isDeleted = await store.deleteWebhook(transaction, key);
    await store.refreshInterests(transaction, key.organizationId);
    return isDeleted;
  });
}

/** What is wanted follows from all webhooks of an organization: two changes at once take turns. */
async function lockInterests(transaction: Transaction, organizationId: string): Promise<void> {
  await lockName(transaction, `webhooks ${organizationId}`);
}
