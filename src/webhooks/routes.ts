import { type Static, Type } from 'typebox';
import type { Clock } from '../platform/clock.ts';
import { badRequest, notFound, resourceNotFound } from '../platform/http/errors.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf } from '../platform/http/shapes.ts';
import type { Watch } from '../platform/queue/watch.ts';
import { createShares } from '../platform/shares.ts';
import {
  createWebhook,
  deleteWebhook,
  updateWebhook,
  webhookLimitReached,
  webhooksMax,
  type WebhookTools,
} from './keeping.ts';
import { type LogReading, type LogTools, readEvents } from './log.ts';
import {
  type EventPage,
  eventPage,
  eventsOfPageMax,
  waitSecondsMax,
  webhookBody,
  webhookPatch,
  webhookRecord,
} from './schema.ts';
import * as store from './store.ts';

export type WebhookRouteTools = WebhookTools & LogTools & { clock: Clock; eventWatch: Watch };

const tag = 'Webhooks';

export function webhookRoutes(tools: WebhookRouteTools): Route[] {
  const { database } = tools;
  const readWaiting = createWaitingReader(tools);
  return [
    defineRoute({
      method: 'POST',
      path: '/webhooks',
      operationId: 'createWebhook',
      scope: 'webhooks:write',
      tag,
      summary: 'Ask to be told of events',
      description: `From then on what happens is kept in the log of the organization for 30 days. There are at most ${webhooksMax}.`,
      body: webhookBody,
      success: { statusCode: 201, schema: webhookRecord, when: 'The webhook.' },
      errors: [webhookLimitReached],
      handle: async ({ caller: { organizationId }, body }) =>
        json(showWebhook(await createWebhook(tools, organizationId, body))),
    }),
    defineRoute({
      method: 'GET',
      path: '/webhooks',
      operationId: 'listWebhooks',
      scope: 'webhooks:read',
      tag,
      summary: 'List webhooks',
      query: Type.Object(paginationParameters, { additionalProperties: false }),
      success: { statusCode: 200, schema: listOf(webhookRecord), when: 'A page of webhooks.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const rows = await database.asOrganizations([organizationId], (transaction) =>
          store.listWebhooks(transaction, { organizationId, page }),
        );
        return json(toList(rows, page, showWebhook));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/webhooks/:id',
      operationId: 'getWebhook',
      scope: 'webhooks:read',
      tag,
      summary: 'Read a webhook',
      params: idParameter,
      success: { statusCode: 200, schema: webhookRecord, when: 'The webhook.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const row = await database.asOrganizations([organizationId], (transaction) =>
          store.findWebhook(transaction, { organizationId, id }),
        );
        if (row === null) throw resourceNotFound();
        return json(showWebhook(row));
      },
    }),
    defineRoute({
      method: 'PATCH',
      path: '/webhooks/:id',
      operationId: 'updateWebhook',
      scope: 'webhooks:write',
      tag,
      summary: 'Change a webhook',
      params: idParameter,
      body: webhookPatch,
      success: { statusCode: 200, schema: webhookRecord, when: 'The webhook as it is now.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id }, body }) => {
        const row = await updateWebhook(tools, { organizationId, id }, body);
        if (row === null) throw resourceNotFound();
        return json(showWebhook(row));
      },
    }),
    defineRoute({
      method: 'DELETE',
      path: '/webhooks/:id',
      operationId: 'deleteWebhook',
      scope: 'webhooks:write',
      tag,
      summary: 'Delete a webhook',
      description: 'What no other webhook wants is not logged any more. What is in the log stays there.',
      params: idParameter,
      success: { statusCode: 200, schema: deletedOf('webhook'), when: 'The webhook is deleted.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        if (!(await deleteWebhook(tools, { organizationId, id }))) throw resourceNotFound();
        return json({ object: 'webhook', id, deleted: true });
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/webhook-events',
      operationId: 'listWebhookEvents',
      scope: 'webhooks:read',
      tag,
      summary: 'Read the log of events',
      description:
        'Oldest first. Go on with the `next` of each page, which stays valid: who was away for a week goes on where they stopped. With `wait` the answer is held back until something happens.',
      query: Type.Object(
        {
          from: Type.Optional(
            Type.String({
              format: 'log-position',
              description: 'Events from this position on; the oldest that are kept unless given.',
            }),
          ),
          types: Type.Optional(
            Type.String({
              format: 'event-patterns',
              maxLength: 4_000,
              description: 'Types or patterns, with commas between them; all unless given.',
            }),
          ),
          limit: Type.Optional(
            Type.String({
              format: 'event-page-size',
              default: '100',
              description: `Events on a page, 1 to ${eventsOfPageMax}.`,
            }),
          ),
          wait: Type.Optional(
            Type.String({
              format: 'wait-seconds',
              default: '0',
              description: `For how many seconds to wait for the first event, 0 to ${waitSecondsMax}.`,
            }),
          ),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: eventPage, when: 'A page of events.' },
      errors: [],
      handle: async ({ caller: { organizationId }, query: { from, types, limit = '100', wait = '0' } }) => {
        const reading = {
          organizationId,
          from: from === undefined ? null : Number(from),
          patterns: types?.split(',') ?? ['*'],
          limit: Number(limit),
        };
        return json(await readWaiting(reading, Number(wait) * 1_000));
      },
    }),
  ];
}

function showWebhook(row: store.WebhookRow): Static<typeof webhookRecord> {
  return {
    id: row.id,
    kind: row.kind,
    events: row.events,
    campaign_events: row.campaign_events,
    description: row.description,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

/** Requests of a process that wait at once; each organization has a share. Whoever has none is answered without waiting. */
const waitingMax = 500;

/** Reads the log, and again for as long as there is nothing in it and time is left. No connection is held meanwhile. */
function createWaitingReader(
  tools: WebhookRouteTools,
): (reading: LogReading, waitMs: number) => Promise<EventPage> {
  const places = createShares(waitingMax);
  return async (given, waitMs) => {
    let reading = given;
    const place = waitMs > 0 ? places.take(reading.organizationId, 1) : null;
    if (place === null) return readEvents(tools, reading);
    const { clock, eventWatch } = tools;
    const endMs = clock.monotonicMs() + waitMs;
    const waiting = eventWatch.begin(reading.organizationId);
    try {
      for (;;) {
        const page = await readEvents(tools, reading);
        const leftMs = endMs - clock.monotonicMs();
        if (page.data.length > 0 || leftMs <= 0) return page;
        // What does not interest is not looked at again.
        reading = { ...reading, from: page.next };
        if (!(await waiting.until(leftMs))) return page;
      }
    } finally {
      waiting.end();
      place.release();
    }
  };
}
