import type { SuppressionTools } from '../audience/audience.ts';
import { badRequest, forbidden, notFound } from '../platform/http/errors.ts';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { defineRoute, type Route } from '../platform/http/route.ts';
import {
  type LoadRecords,
  messageReadingRoutes,
  messageReference,
  type MessageRouteTools,
  monthlyQuotaExceeded,
  readNumberPrefix,
  sendingSuspended,
  warningsHeader,
} from '../messages/messages.ts';
import { showChatApp } from './record.ts';
import {
  chatAppCategory,
  type ChatAppRecord,
  chatAppRecord,
  chatAppSendBody,
  chatAppStatus,
} from './schema.ts';
import { prepareChatApp } from './send.ts';
import { loadChatAppParts } from './store.ts';

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
    ...messageReadingRoutes(tools, {
      channel: 'chatapp',
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
