import { Type } from 'typebox';
import type { SuppressionTools } from '../audience/audience.ts';
import { badRequest, forbidden, notFound, resourceNotFound } from '../platform/http/errors.ts';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { idParameter, listOf } from '../platform/http/shapes.ts';
import {
  findMessage,
  listMessages,
  messageNotFound,
  messageReference,
  type MessageRouteTools,
  monthlyQuotaExceeded,
  readNumberPrefix,
  sendingSuspended,
  warningsHeader,
} from '../messages/messages.ts';
import { showChatApp } from './record.ts';
import { chatAppCategory, chatAppRecord, chatAppSendBody, chatAppStatus } from './schema.ts';
import { prepareChatApp } from './send.ts';
import { joinChatAppParts } from './store.ts';

const channel = 'chatapp';

export function chatAppRoutes(tools: MessageRouteTools & SuppressionTools): Route[] {
  const { database, acceptor, readHorizon } = tools;
  return [
    defineRoute({
      method: 'POST',
      path: '/chatapp/send',
      operationId: 'sendChatApp',
      scope: 'chatapp:send',
      tag: 'Chat-app',
      summary: 'Send a utility or authentication template to one person',
      description:
        'Name the person by `to` alone, or by a contact: `contact_id` alone, or `external_id`, `email` or ' +
        '`phone_number`, of which the first that is known counts. The template is named by `template_id`, or by ' +
        '`template` and `language`. Marketing templates are sent as campaigns.',
      body: chatAppSendBody,
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
          prepareChatApp(transaction, tools, { organizationId, body, idempotencyKey }),
        );
        return toRouteResponse(await acceptor.accept(prepared, idempotencyKey, null, traceId));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/chatapp',
      operationId: 'listChatApp',
      scope: 'chatapp:read',
      tag: 'Chat-app',
      summary: 'List sent chat-app messages with their status',
      description: 'Newest first. Messages of campaigns are not in this list.',
      query: Type.Object(
        {
          ...paginationParameters,
          search: Type.Optional(
            Type.String({
              minLength: 1,
              maxLength: 200,
              description:
                "Beginning of the recipient's number, with or without its plus, or of the template's name.",
            }),
          ),
          status: Type.Optional(chatAppStatus),
          category: Type.Optional(chatAppCategory),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(chatAppRecord), when: 'A page of messages.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { search, status, category } = query;
        const filter = {
          ...(search !== undefined && { search: { text: search, address: readNumberPrefix(search) } }),
          ...(status !== undefined && { status }),
          ...(category !== undefined && { category }),
        };
        const rows = await database.asOrganizations([organizationId], async (transaction) => {
          const horizon = await readHorizon(transaction, organizationId);
          const found = await listMessages(transaction, { organizationId, channel, filter, page, horizon });
          return joinChatAppParts(transaction, { organizationId, messages: found, horizon });
        });
        return json(toList(rows, page, showChatApp));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/chatapp/:id',
      operationId: 'getChatApp',
      scope: 'chatapp:read',
      tag: 'Chat-app',
      summary: 'Read a chat-app message and its status',
      params: idParameter,
      success: { statusCode: 200, schema: chatAppRecord, when: 'The message.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const [row] = await database.asOrganizations([organizationId], async (transaction) => {
          const horizon = await readHorizon(transaction, organizationId);
          const message = await findMessage(transaction, { organizationId, id, channel, horizon });
          if (message === null) throw messageNotFound(horizon, id);
          return joinChatAppParts(transaction, { organizationId, messages: [message], horizon });
        });
        if (row === undefined) throw resourceNotFound();
        return json(showChatApp(row));
      },
    }),
  ];
}
