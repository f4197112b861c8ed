import { Type } from 'typebox';
import { badRequest, notFound, resourceNotFound } from '../platform/http/errors.ts';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { idParameter, listOf } from '../platform/http/shapes.ts';
import { showSms } from './record.ts';
import { smsRecord, smsSendBody, smsStatus } from './schema.ts';
import { prepareSms } from './send.ts';
import { joinSmsParts } from './store.ts';
import {
  categoryFilter,
  findMessage,
  listMessages,
  messageNotFound,
  messageReference,
  type MessageRouteTools,
  missingVariablesHeader,
  warningsHeader,
  monthlyQuotaExceeded,
  readNumberPrefix,
  type SearchedPrefixes,
  sendingSuspended,
} from '../messages/messages.ts';

const channel = 'sms';

export function smsRoutes({ database, acceptor, readHorizon }: MessageRouteTools): Route[] {
  return [
    defineRoute({
      method: 'POST',
      path: '/sms/send',
      operationId: 'sendSms',
      scope: 'sms:send',
      tag: 'SMS',
      summary: 'Send a transactional SMS',
      description:
        'The text is stored and queued before the response is sent. Read it to see its status. The monthly quota counts its segments.',
      body: smsSendBody,
      isIdempotent: true,
      success: {
        statusCode: 202,
        schema: messageReference,
        when: 'Accepted for delivery.',
        headers: { ...missingVariablesHeader, ...warningsHeader },
      },
      errors: [badRequest, sendingSuspended, monthlyQuotaExceeded, ...idempotencyErrors],
      handle: async ({ caller: { organizationId }, body, idempotencyKey, traceId }) => {
        const prepared = prepareSms({ organizationId, body, idempotencyKey });
        return toRouteResponse(await acceptor.accept(prepared, idempotencyKey, null, traceId));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/sms',
      operationId: 'listSms',
      scope: 'sms:read',
      tag: 'SMS',
      summary: 'List sent SMS with their delivery status',
      description: 'Newest first. Texts of campaigns are not in this list.',
      query: Type.Object(
        {
          ...paginationParameters,
          search: Type.Optional(
            Type.String({
              minLength: 1,
              maxLength: 200,
              description: 'Beginning of the sender or of the recipient, with or without a plus.',
            }),
          ),
          status: Type.Optional(smsStatus),
          category: Type.Optional(categoryFilter),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(smsRecord), when: 'A page of texts.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { search, status, category } = query;
        const filter = {
          ...(search !== undefined && { search: prefixesOf(search) }),
          ...(status !== undefined && { status }),
          ...(category !== undefined && { category }),
        };
        const rows = await database.asOrganizations([organizationId], async (transaction) => {
          const horizon = await readHorizon(transaction, organizationId);
          const found = await listMessages(transaction, { organizationId, channel, filter, page, horizon });
          return joinSmsParts(transaction, { organizationId, messages: found, horizon });
        });
        return json(toList(rows, page, showSms));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/sms/:id',
      operationId: 'getSms',
      scope: 'sms:read',
      tag: 'SMS',
      summary: 'Read an SMS and its status',
      params: idParameter,
      success: { statusCode: 200, schema: smsRecord, when: 'The text.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const [row] = await database.asOrganizations([organizationId], async (transaction) => {
          const horizon = await readHorizon(transaction, organizationId);
          const message = await findMessage(transaction, { organizationId, id, channel, horizon });
          if (message === null) throw messageNotFound(horizon, id);
          return joinSmsParts(transaction, { organizationId, messages: [message], horizon });
        });
        if (row === undefined) throw resourceNotFound();
        return json(showSms(row));
      },
    }),
  ];
}

/** Numbers of senders are kept without a plus, those of recipients with one. */
function prefixesOf(search: string): SearchedPrefixes {
  const address = readNumberPrefix(search);
  return { text: address?.slice(1) ?? search, address };
}
