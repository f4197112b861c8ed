import { type Static, type TObject, type TSchema, Type } from 'typebox';
import { type Clock, sleep } from '../platform/clock.ts';
import {
  badRequest,
  type ErrorDefinition,
  notFound,
  overloaded,
  resourceNotFound,
} from '../platform/http/errors.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route, type RouteRequest } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf, literals } from '../platform/http/shapes.ts';
import type { PartListener } from '../platform/queue/part-listener.ts';
import { createShares } from '../platform/shares.ts';
import {
  createWebhook,
  deleteWebhook,
  enableWebhook,
  pauseWebhook,
  rotateSecret,
  updateWebhook,
  webhookLimitReached,
  webhooksMax,
  type WebhookTools,
} from './keeping.ts';
import { type LogReading, type LogTools, readEvents } from './log.ts';
import { replayEvents, retryDelivery } from './replaying.ts';
import {
  createdWebhook,
  deliveryRecord,
  deliveryStatuses,
  deliveryWithAttempts,
  enablingBody,
  type EventPage,
  eventPage,
  eventsOfPageMax,
  replayBody,
  replayedMax,
  replayResult,
  rotatedSecret,
  rotationBody,
  testBody,
  testResult,
  waitSecondsMax,
  webhookBody,
  webhookPatch,
  webhookRecord,
} from './schema.ts';
import * as store from './store.ts';
import { type TestingTools, testWebhook } from './testing.ts';
import { eventTypes } from './event-types.ts';

export type WebhookRouteTools = WebhookTools &
  LogTools &
  TestingTools & {
    clock: Clock;
    /** Hears of `webhook_events`. */
    numbered: PartListener;
  };

const tag = 'Webhooks';

const deliveryParameters = Type.Object({
  id: Type.String({ format: 'uuid' }),
  event_id: Type.String({ format: 'uuid' }),
});

/** Tests of endpoints at once, each of which may take a quarter of a minute; organizations have shares. */
const testsMax = 100;
const beingTried = 'Too many webhooks are being tried at the moment.';

/** More than the schedule has; the oldest are left out. */
const attemptsShownMax = 50;

export function webhookRoutes(tools: WebhookRouteTools): Route[] {
  return [...keepingRoutes(tools), ...stateRoutes(tools), ...deliveryRoutes(tools), logRoute(tools)];
}

function keepingRoutes(tools: WebhookRouteTools): Route[] {
  const { database } = tools;
  return [
    defineRoute({
      method: 'POST',
      path: '/webhooks',
      operationId: 'createWebhook',
      scope: 'webhooks:write',
      tag,
      summary: 'Ask to be told of events',
      description: `From then on what happens is kept in the log of the organization for 30 days. There are at most ${webhooksMax}. The secret is shown here alone.`,
      body: webhookBody,
      success: { statusCode: 201, schema: createdWebhook, when: 'The webhook and its secret.' },
      errors: [webhookLimitReached],
      handle: async ({ caller: { organizationId }, body }) => {
        const { webhook, secret } = await createWebhook(tools, organizationId, body);
        return json({ ...showWebhook(webhook), secret });
      },
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
      handle: async ({ caller: { organizationId }, params: { id } }) =>
        json(
          showFound(
            await database.asOrganizations([organizationId], (transaction) =>
              store.findWebhook(transaction, { organizationId, id }),
            ),
          ),
        ),
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
      errors: [badRequest, notFound],
      handle: async ({ caller: { organizationId }, params: { id }, body }) =>
        json(showFound(await updateWebhook(tools, { organizationId, id }, body))),
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
  ];
}

/** What is done to one webhook. */
function action<Body extends TObject, Answer extends TSchema>({
  name,
  handle,
  success,
  errors = [],
  ...route
}: {
  /** The last part of its path. */
  name: string;
  operationId: string;
  summary: string;
  description?: string;
  body?: Body;
  countRequests?: NonNullable<Route['countRequests']>;
  success: { statusCode: 200 | 202; schema: Answer; when: string };
  errors?: readonly ErrorDefinition[];
  /** Null if there is no such webhook. */
  handle: (
    key: store.WebhookKey,
    request: RouteRequest<{ id: string }, unknown, Static<Body>>,
  ) => Promise<Static<Answer> | null>;
}): Route {
  return defineRoute<typeof idParameter, TObject, Body>({
    ...route,
    method: 'POST',
    path: `/webhooks/:id/${name}`,
    scope: 'webhooks:write',
    tag,
    addsStorage: false,
    ...(route.body !== undefined && { isBodyOptional: name !== 'replay' }),
    params: idParameter,
    success,
    errors: [notFound, ...errors],
    handle: async (request) => {
      const { caller, params } = request;
      const answer = await handle({ organizationId: caller.organizationId, id: params.id }, request);
      if (answer === null) throw resourceNotFound();
      return json(answer);
    },
  });
}

function stateRoutes(tools: WebhookRouteTools): Route[] {
  const testing = createShares(testsMax);
  return [
    action({
      name: 'rotate-secret',
      operationId: 'rotateWebhookSecret',
      summary: 'Replace the secret of a webhook',
      description:
        'The one before signs too for as long as is said, so that a receiver with either verifies. One that was replaced before that signs no more.',
      body: rotationBody,
      success: { statusCode: 200, schema: rotatedSecret, when: 'The new secret.' },
      handle: async (key, { body: { secret, expire_after_hours: expireAfterHours = 24 } }) => {
        const rotated = await rotateSecret(tools, key, {
          ...(typeof secret === 'string' && { secret }),
          expireAfterHours,
        });
        return (
          rotated && {
            id: key.id,
            secret: rotated.secret,
            previous_ends_at: rotated.previousEndsAt.toISOString(),
          }
        );
      },
    }),
    action({
      name: 'pause',
      operationId: 'pauseWebhook',
      summary: 'Pause a webhook',
      description: 'It is told nothing, and what happens waits in the log for 30 days.',
      success: { statusCode: 200, schema: webhookRecord, when: 'The webhook as it is now.' },
      handle: async (key) => showOrNull(await pauseWebhook(tools, key)),
    }),
    action({
      name: 'enable',
      operationId: 'enableWebhook',
      summary: 'Enable a webhook that is paused, disabled or failing',
      body: enablingBody,
      success: { statusCode: 200, schema: webhookRecord, when: 'The webhook as it is now.' },
      handle: async (key, { body: { from } }) =>
        showOrNull(await enableWebhook(tools, key, { fromNow: from === 'now' })),
    }),
    action({
      name: 'test',
      operationId: 'testWebhook',
      summary: 'Send an endpoint an event that did not happen',
      description: 'It is sent at once, and answered with what the endpoint said. It is in no log.',
      body: testBody,
      success: { statusCode: 200, schema: testResult, when: 'What came of it.' },
      handle: async (key, { body: { type = 'email.delivered' } }) => {
        const place = testing.take(key.organizationId, 1);
        if (place === null) throw overloaded(beingTried);
        const tested = await testWebhook(tools, key, type).finally(place.release);
        if (tested === null) return null;
        const { eventId, attempt } = tested;
        if (attempt.kind === 'put_off') throw overloaded(beingTried);
        return {
          event_id: eventId,
          delivered: attempt.kind === 'delivered',
          status: attempt.status,
          ms: attempt.ms,
          message: attempt.kind === 'delivered' ? null : attempt.message,
          answer: attempt.answer,
        };
      },
    }),
    action({
      name: 'replay',
      operationId: 'replayWebhook',
      summary: 'Tell an endpoint once more of a part of the log',
      description: `One request replays ${replayedMax} positions at most. Each event has the id that it had. A request for more than ${replayedOfRequest} positions counts towards the rate limit as one for each ${replayedOfRequest} of them.`,
      body: replayBody,
      countRequests: ({ body }) => countReplayed(body as Static<typeof replayBody>),
      success: { statusCode: 202, schema: replayResult, when: 'How many events are told again.' },
      handle: (key, { body: { from, to = Number.MAX_SAFE_INTEGER, only } }) =>
        replayEvents(tools, key, { from, to, onlyFailed: only === 'failed' }),
    }),
  ];
}

/** What a replay costs is rows to be written: without this, a loop of them would be a thousand times as dear as any other. */
const replayedOfRequest = 100;

function countReplayed({ from, to = Number.MAX_SAFE_INTEGER }: Static<typeof replayBody>): number {
  return Math.max(1, Math.ceil(Math.min(to - from + 1, replayedMax) / replayedOfRequest));
}

function deliveryRoutes(tools: WebhookRouteTools): Route[] {
  const { database } = tools;
  return [
    defineRoute({
      method: 'GET',
      path: '/webhooks/:id/deliveries',
      operationId: 'listWebhookDeliveries',
      scope: 'webhooks:read',
      tag,
      summary: 'List deliveries of a webhook',
      description:
        'All that were not taken at once, and a sample of the others: where there are few, all of them.',
      params: idParameter,
      query: Type.Object(
        {
          ...paginationParameters,
          status: Type.Optional(literals(deliveryStatuses)),
          type: Type.Optional(literals(eventTypes)),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(deliveryRecord), when: 'A page of deliveries.' },
      errors: [badRequest, notFound],
      handle: async ({ caller: { organizationId }, params: { id }, query }) => {
        const page = readPage(query);
        const { status = null, type = null } = query;
        const rows = await database.asOrganizations([organizationId], async (transaction) => {
          if ((await store.findWebhook(transaction, { organizationId, id })) === null)
            throw resourceNotFound();
          return store.listDeliveries(transaction, { organizationId, id }, { page, status, type });
        });
        return json(toList(rows, page, showDelivery));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/webhooks/:id/deliveries/:event_id',
      operationId: 'getWebhookDelivery',
      scope: 'webhooks:read',
      tag,
      summary: 'Read a delivery with its attempts',
      params: deliveryParameters,
      success: { statusCode: 200, schema: deliveryWithAttempts, when: 'The delivery.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id, event_id: eventId } }) => {
        const key = { organizationId, id };
        const [row, attempts] = await database.asOrganizations([organizationId], async (transaction) => [
          await store.findDelivery(transaction, key, eventId),
          await store.listAttempts(transaction, key, { eventId, limit: attemptsShownMax }),
        ]);
        if (row === null) throw resourceNotFound();
        return json({
          ...showDelivery(row),
          attempt_list: attempts.map(({ at, ...attempt }) => ({ at: at.toISOString(), ...attempt })),
        });
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/webhooks/:id/deliveries/:event_id/retry',
      operationId: 'retryWebhookDelivery',
      scope: 'webhooks:write',
      tag,
      summary: 'Tell an endpoint of an event once more',
      addsStorage: false,
      params: deliveryParameters,
      success: { statusCode: 202, schema: deliveryRecord, when: 'The delivery, which is due at once.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id, event_id: eventId } }) => {
        const row = await retryDelivery(tools, { organizationId, id }, eventId);
        if (row === null) throw resourceNotFound();
        return json(showDelivery(row));
      },
    }),
  ];
}

function showDelivery(row: store.DeliveryRow): Static<typeof deliveryRecord> {
  return {
    id: row.event_id,
    type: row.type,
    sequence: row.position,
    status: row.status,
    attempts: row.attempts,
    next_attempt_at: row.due_at?.toISOString() ?? null,
    updated_at: row.updated_at.toISOString(),
  };
}

function showFound(row: store.WebhookRow | null): Static<typeof webhookRecord> {
  if (row === null) throw resourceNotFound();
  return showWebhook(row);
}

function showOrNull(row: store.WebhookRow | null): Static<typeof webhookRecord> | null {
  return row && showWebhook(row);
}

function showWebhook(row: store.WebhookRow): Static<typeof webhookRecord> {
  const isEndpoint = row.kind === 'url';
  return {
    id: row.id,
    kind: row.kind,
    url: row.url,
    status: row.status === 'enabled' && row.failing_since !== null ? 'failing' : row.status,
    events: row.events,
    campaign_events: row.campaign_events,
    format: isEndpoint ? row.format : null,
    description: row.description,
    header_names: Object.keys(row.headers),
    concurrency: isEndpoint ? row.concurrency : null,
    backlog: row.backlog,
    failing_since: row.failing_since?.toISOString() ?? null,
    next_attempt_at: row.failing_since === null ? null : (row.next_try_at?.toISOString() ?? null),
    last_success_at: row.last_success_at?.toISOString() ?? null,
    last_failure:
      row.last_failure_at === null
        ? null
        : {
            at: row.last_failure_at.toISOString(),
            status: row.last_failure_status,
            message: row.last_failure_message ?? '',
          },
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

function logRoute(tools: WebhookRouteTools): Route {
  const readWaiting = createWaitingReader(tools);
  return defineRoute({
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
            description:
              'Events from this position on, or `now` for those to come; the oldest that are kept unless given.',
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
      const reading: LogReading = {
        organizationId,
        from: from === undefined ? 'oldest' : from === 'now' ? from : Number(from),
        patterns: types?.split(',') ?? ['*'],
        limit: Number(limit),
      };
      return json(await readWaiting(reading, Number(wait) * 1_000));
    },
  });
}

/**
 * Between two looks of a request that waits. A notification may be about others, or about what does not interest: without
 * it, one organization to which much happens would have everybody who waits look again fifty times a second.
 */
const restMs = 500;
/** Requests of a process that wait at once; each organization has a share. Whoever has none is answered without waiting. */
const waitingMax = 500;

/** Reads the log, and again for as long as there is nothing in it and time is left. No connection is held meanwhile. */
function createWaitingReader(
  tools: WebhookRouteTools,
): (reading: LogReading, waitMs: number) => Promise<EventPage> {
  const places = createShares(waitingMax);
  return async (reading, waitMs) => {
    const place = waitMs > 0 ? places.take(reading.organizationId, 1) : null;
    if (place === null) return readEvents(tools, reading);
    try {
      return await readWhenThereIsAny(tools, reading, waitMs);
    } finally {
      place.release();
    }
  };
}

function readWhenThereIsAny(
  tools: WebhookRouteTools,
  reading: LogReading,
  waitMs: number,
): Promise<EventPage> {
  const { clock, numbered } = tools;
  const endMs = clock.monotonicMs() + waitMs;
  return numbered.whileHearing(reading.organizationId, async (wait) => {
    const leftMs = () => Math.max(endMs - clock.monotonicMs(), 0);
    let page = await readEvents(tools, reading);
    let isOver = false;
    // Looks once more when the time is over: the listener may have been without a connection.
    while (page.data.length === 0 && !isOver) {
      isOver = await wait(leftMs());
      // What does not interest is not looked at again.
      page = await readEvents(tools, { ...reading, from: page.next });
      if (page.data.length === 0 && !isOver) await sleep(clock, Math.min(restMs, leftMs()));
    }
    return page;
  });
}
