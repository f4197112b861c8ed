import { audienceFormats, type SuppressionTools } from '../audience/audience.ts';
import type { BodyPreparation } from '../platform/http/body-threads.ts';
import { badRequest, forbidden, notFound } from '../platform/http/errors.ts';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { defineRoute, type Route } from '../platform/http/route.ts';
import {
  batchRoute,
  createBatchReader,
  describeBatchItem,
  type LoadRecords,
  messageReadingRoutes,
  messageReference,
  messageSchedulingRoutes,
  type MessageRouteTools,
  monthlyQuotaExceeded,
  prepareLargeBatch,
  readNumberPrefix,
  sendingSuspended,
  warningsHeader,
} from '../messages/messages.ts';
import { chatAppChannel } from './channel.ts';
import { showChatApp } from './record.ts';
import {
  chatAppCategory,
  type ChatAppRecord,
  chatAppRecord,
  type ChatAppSendBody,
  chatAppSendBody,
  chatAppStatus,
} from './schema.ts';
import { chatAppRules } from './rules.ts';
import { prepareChatApp, prepareChatApps } from './send.ts';
import { loadChatAppParts } from './store.ts';

const readChatAppBatch = createBatchReader<ChatAppSendBody>(audienceFormats, chatAppRules, chatAppSendBody);

/** What the thread that reads large bodies makes of them, by the key of the route. */
export const chatAppPreparations: Readonly<Record<string, BodyPreparation>> = {
  'POST /chatapp/send/batch': prepareLargeBatch('messages', readChatAppBatch),
};

/** By title, what stands in the place of the schemas of those titles in the description of the API. */
export function describeBatchedChatApp() {
  return { BatchedChatApp: describeBatchItem(chatAppSendBody) };
}

export function chatAppRoutes(tools: MessageRouteTools & SuppressionTools): Route[] {
  const { database, acceptor } = tools;
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
    batchRoute(tools, {
      path: '/chatapp/send',
      operationId: 'sendChatAppBatch',
      scope: 'chatapp:send',
      tag: 'Chat-app',
      noun: 'utility or authentication templates',
      field: 'messages',
      titles: { body: 'SendChatAppBatchRequest', item: 'BatchedChatApp' },
      errors: [badRequest, notFound, forbidden, sendingSuspended, monthlyQuotaExceeded],
      read: readChatAppBatch,
      prepare: async (organizationId, bodies) => {
        const requests = bodies.map((body) => ({ body, idempotencyKey: null }));
        const prepared = await database.asOrganizationsByIndex([organizationId], (transaction) =>
          prepareChatApps(transaction, tools, organizationId, requests),
        );
        return prepared.map((one) => ({ prepared: one }));
      },
    }),
    ...messageSchedulingRoutes(tools, {
      channel: chatAppChannel,
      path: '/chatapp',
      scope: 'chatapp:send',
      tag: 'Chat-app',
      noun: 'a chat-app message',
      idNoun: 'ChatApp',
      named: 'number',
      nameOf: (address) => address || null,
    }),
    ...messageReadingRoutes(tools, {
      channel: chatAppChannel,
      path: '/chatapp',
      scope: 'chatapp:read',
      tag: 'Chat-app',
      list: {
        operationId: 'listChatApp',
        summary: 'List sent chat-app messages with their status',
        description: 'Newest first. Messages of campaigns are not in this list.',
        searched: "Beginning of the recipient's number, with or without its plus, or of the template's name.",
        prefixesOf: (search) => ({ text: search, address: readNumberPrefix(search) }),
        status: chatAppStatus,
        category: chatAppCategory,
        record: chatAppRecord,
        when: 'A page of messages.',
        load,
      },
      read: {
        operationId: 'getChatApp',
        summary: 'Read a chat-app message and its status',
        record: chatAppRecord,
        when: 'The message.',
        load,
      },
    }),
  ];
}

const load: LoadRecords<ChatAppRecord> = async (transaction, wanted) => {
  const parts = await loadChatAppParts(transaction, wanted);
  return (message) => {
    const ofMessage = parts.get(message.id);
    return ofMessage === undefined ? null : showChatApp({ ...message, ...ofMessage });
  };
};
