import { Type } from 'typebox';
import { badRequest, forbidden, notFound, PublicError, unauthorized } from '../platform/http/errors.ts';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route, scopeOfDevices } from '../platform/http/route.ts';
import { idParameter, listOf } from '../platform/http/shapes.ts';
import {
  categoryFilter,
  findMessage,
  listMessages,
  messageNotFound,
  messageReference,
  type MessageRouteTools,
  monthlyQuotaExceeded,
  sendingSuspended,
  warningsHeader,
} from '../messages/messages.ts';
import { deviceSecretHelp } from '../devices/devices.ts';
import { type PushEngagementTools, recordPushEngagements } from './engagements.ts';
import { showListedPush, showPush } from './record.ts';
import {
  engagementCounts,
  engagementsBody,
  listedPushRecord,
  pushRecord,
  pushSendBody,
  pushStatus,
} from './schema.ts';
import { preparePush } from './send.ts';
import { countDeviceFates, listPushRecipients, loadContents } from './store.ts';

const channel = 'push';

export type PushRouteTools = MessageRouteTools & PushEngagementTools;

export function pushRoutes(tools: PushRouteTools): Route[] {
  const { database, acceptor, readHorizon } = tools;
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
    defineRoute({
      method: 'GET',
      path: '/push',
      operationId: 'listPushes',
      scope: 'push:read',
      tag: 'Push',
      summary: 'List sent pushes with their status',
      description: 'Newest first. Pushes of campaigns are not in this list.',
      query: Type.Object(
        {
          ...paginationParameters,
          search: Type.Optional(
            Type.String({ minLength: 1, maxLength: 200, description: 'Beginning of the title.' }),
          ),
          status: Type.Optional(pushStatus),
          category: Type.Optional(categoryFilter),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(listedPushRecord), when: 'A page of pushes.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { search, status, category } = query;
        const filter = {
          // A device id is nothing that one would look for by its beginning.
          ...(search !== undefined && { search: { text: search, address: null } }),
          ...(status !== undefined && { status }),
          ...(category !== undefined && { category }),
        };
        const items = await database.asOrganizations([organizationId], async (transaction) => {
          const horizon = await readHorizon(transaction, organizationId);
          const rows = await listMessages(transaction, { organizationId, channel, filter, page, horizon });
          const ids = rows.map(({ id }) => id);
          const [contents, counted] = await Promise.all([
            loadContents(transaction, { organizationId, messageIds: ids, horizon }),
            countDeviceFates(transaction, organizationId, ids),
          ]);
          return rows.map((row) => ({
            row: { ...row, content: contents.get(row.id) ?? null },
            counted: counted.get(row.id) ?? {},
          }));
        });
        return json(toList(items, page, ({ row, counted }) => showListedPush(row, counted)));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/push/:id',
      operationId: 'getPush',
      scope: 'push:read',
      tag: 'Push',
      summary: 'Read one push and what became of it on each device',
      params: idParameter,
      success: { statusCode: 200, schema: pushRecord, when: 'The push.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const found = await database.asOrganizations([organizationId], async (transaction) => {
          const horizon = await readHorizon(transaction, organizationId);
          const message = await findMessage(transaction, { organizationId, id, channel, horizon });
          if (message === null) throw messageNotFound(horizon, id);
          const [contents, recipients] = await Promise.all([
            loadContents(transaction, { organizationId, messageIds: [message.id], horizon }),
            listPushRecipients(transaction, { organizationId, id: message.id }),
          ]);
          return { row: { ...message, content: contents.get(message.id) ?? null }, recipients };
        });
        return json(showPush(found.row, found.recipients));
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/push/engagements',
      operationId: 'reportEngagements',
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
