import { audienceFormats } from '../audience/audience.ts';
import type { BodyPreparation } from '../platform/http/body-threads.ts';
import { badRequest, forbidden, notFound, PublicError, unauthorized } from '../platform/http/errors.ts';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { defineRoute, json, type Route, scopeOfDevices } from '../platform/http/route.ts';
import {
  batchRoute,
  categoryFilter,
  createBatchReader,
  describeBatchItem,
  messageReadingRoutes,
  messageReference,
  messageSchedulingRoutes,
  type MessageRouteTools,
  monthlyQuotaExceeded,
  prepareLargeBatch,
  sendingSuspended,
  warningsHeader,
} from '../messages/messages.ts';
import { deviceSecretHelp } from '../devices/devices.ts';
import { type PushEngagementTools, recordPushEngagements } from './engagements.ts';
import { readPushAddress } from './address.ts';
import { pushChannel } from './channel.ts';
import { showListedPush, showPush } from './record.ts';
import {
  engagementCounts,
  engagementsBody,
  listedPushRecord,
  pushRecord,
  pushFormats,
  type PushSendBody,
  pushSendBody,
  pushStatus,
} from './schema.ts';
import { pushRules } from './rules.ts';
import { preparePush, preparePushes } from './send.ts';
import { countDeviceFates, listPushRecipients, loadContents } from './store.ts';

export type PushRouteTools = MessageRouteTools & PushEngagementTools;

const readPushBatch = createBatchReader<PushSendBody>(
  { ...audienceFormats, ...pushFormats },
  pushRules,
  pushSendBody,
);

/** What the thread that reads large bodies makes of them, by the key of the route. */
export const pushPreparations: Readonly<Record<string, BodyPreparation>> = {
  'POST /push/send/batch': prepareLargeBatch('messages', readPushBatch),
};

/** By title, what stands in the place of the schemas of those titles in the description of the API. */
export function describeBatchedPushes() {
  return { BatchedPush: describeBatchItem(pushSendBody) };
}

export function pushRoutes(tools: PushRouteTools): Route[] {
  const { database, acceptor } = tools;
  return [
    defineRoute({
      method: 'POST',
      path: '/push/send',
      operationId: 'sendPush',
      scope: 'push:send',
      tag: 'Push',
      summary: 'Send a push notification to a contact',
      description:
        'It goes to every active device that the contact has at this moment, and is stored and queued before the answer ' +
        'is given. A contact without any device is skipped. Name the contact by `contact_id` alone, or by `external_id`, ' +
        '`email` or `phone_number`, of which the first that is known counts.',
      body: pushSendBody,
      isIdempotent: true,
      success: {
        statusCode: 202,
        schema: messageReference,
        when: 'Accepted for delivery.',
        headers: warningsHeader,
      },
      errors: [badRequest, notFound, forbidden, sendingSuspended, monthlyQuotaExceeded, ...idempotencyErrors],
      handle: async ({ caller: { organizationId }, body, idempotencyKey, traceId }) => {
        const prepared = await database.asOrganizations([organizationId], (transaction) =>
          preparePush(transaction, { organizationId, body, idempotencyKey }),
        );
        return toRouteResponse(await acceptor.accept(prepared, idempotencyKey, null, traceId));
      },
    }),
    batchRoute(tools, {
      path: '/push/send',
      operationId: 'sendPushBatch',
      scope: 'push:send',
      tag: 'Push',
      noun: 'push notifications',
      field: 'messages',
      titles: { body: 'SendPushBatchRequest', item: 'BatchedPush' },
      errors: [badRequest, notFound, forbidden, sendingSuspended, monthlyQuotaExceeded],
      read: readPushBatch,
      prepare: async (organizationId, bodies) => {
        const requests = bodies.map((body) => ({ body, idempotencyKey: null }));
        const prepared = await database.asOrganizationsByIndex([organizationId], (transaction) =>
          preparePushes(transaction, organizationId, requests),
        );
        return prepared.map((one) => ({ prepared: one }));
      },
    }),
    ...messageSchedulingRoutes(tools, {
      channel: pushChannel,
      path: '/push',
      scope: 'push:send',
      tag: 'Push',
      noun: 'a push',
      idNoun: 'Push',
      named: 'device',
      nameOf: (address) => readPushAddress(address)?.deviceId ?? null,
    }),
    ...messageReadingRoutes(tools, {
      channel: pushChannel,
      path: '/push',
      scope: 'push:read',
      tag: 'Push',
      list: {
        operationId: 'listPushes',
        summary: 'List sent pushes with their status',
        description: 'Newest first. Pushes of campaigns are not in this list.',
        searched: 'Beginning of the title.',
        // A device id is nothing that one would look for by its beginning.
        prefixesOf: (search) => ({ text: search, address: null }),
        status: pushStatus,
        category: categoryFilter,
        record: listedPushRecord,
        when: 'A page of pushes.',
        load: async (transaction, wanted) => {
          const [contents, counted] = await Promise.all([
            loadContents(transaction, wanted),
            countDeviceFates(transaction, wanted.organizationId, wanted.messageIds),
          ]);
          return (message) =>
            showListedPush(
              { ...message, content: contents.get(message.id) ?? null },
              counted.get(message.id) ?? {},
            );
        },
      },
      read: {
        operationId: 'getPush',
        summary: 'Read one push and what became of it on each device',
        record: pushRecord,
        when: 'The push.',
        load: async (transaction, wanted) => {
          const [contents, recipients] = await Promise.all([
            loadContents(transaction, wanted),
            listPushRecipients(transaction, wanted),
          ]);
          return (message) =>
            showPush(
              { ...message, content: contents.get(message.id) ?? null },
              recipients.get(message.id) ?? [],
            );
        },
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/push/engagements',
      operationId: 'reportEngagements',
      addsStorage: false,
      scope: scopeOfDevices,
      isForBrowsers: true,
      tag: 'Push devices',
      summary: 'Report from a device what became of pushes on it',
      description:
        'By the app or the page itself, in any order and as often as it takes to get an answer. An event that cannot be is ' +
        'rejected by itself. A click is a display, and a display is a delivery.',
      body: engagementsBody,
      success: {
        statusCode: 202,
        schema: engagementCounts,
        when: 'How many events were new, how many were known, and how many were rejected.',
      },
      handle: async ({ caller: { organizationId, device }, body }) => {
        if (device === undefined) throw new Error('no device has reported');
        if (device.installationId !== body.installation_id)
          throw new PublicError(unauthorized, deviceSecretHelp);
        return json(await recordPushEngagements(tools, organizationId, device, body.events));
      },
    }),
  ];
}
