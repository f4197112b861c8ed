import { audienceFormats } from '../audience/audience.ts';
import type { BodyPreparation } from '../platform/http/body-threads.ts';
import { badRequest } from '../platform/http/errors.ts';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { defineRoute, type Route } from '../platform/http/route.ts';
import { smsChannel } from './channel.ts';
import { showSms } from './record.ts';
import { smsRules } from './rules.ts';
import { type SmsRecord, smsRecord, type SmsSendBody, smsSendBody, smsStatus } from './schema.ts';
import { prepareSms } from './send.ts';
import { loadSmsParts } from './store.ts';
import {
  batchRoute,
  categoryFilter,
  createBatchReader,
  describeBatchItem,
  type LoadRecords,
  messageReadingRoutes,
  messageReference,
  messageSchedulingRoutes,
  type MessageRouteTools,
  missingVariablesHeader,
  warningsHeader,
  monthlyQuotaExceeded,
  prepareLargeBatch,
  readNumberPrefix,
  type SearchedPrefixes,
  sendingSuspended,
} from '../messages/messages.ts';

const readSmsBatch = createBatchReader<SmsSendBody>(audienceFormats, smsRules, smsSendBody);

/** What the thread that reads large bodies makes of them, by the key of the route. */
export const smsPreparations: Readonly<Record<string, BodyPreparation>> = {
  'POST /sms/send/batch': prepareLargeBatch('messages', readSmsBatch),
};

/** By title, what stands in the place of the schemas of those titles in the description of the API. */
export function describeBatchedSms() {
  return { BatchedSms: describeBatchItem(smsSendBody) };
}

export function smsRoutes(tools: MessageRouteTools): Route[] {
  const { acceptor } = tools;
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
    batchRoute(tools, {
      path: '/sms/send',
      operationId: 'sendSmsBatch',
      scope: 'sms:send',
      tag: 'SMS',
      noun: 'transactional SMS',
      field: 'messages',
      titles: { body: 'SendSmsBatchRequest', item: 'BatchedSms' },
      errors: [badRequest, sendingSuspended, monthlyQuotaExceeded],
      read: readSmsBatch,
      prepare: (organizationId, bodies) =>
        Promise.resolve(
          bodies.map((body) => ({ prepared: prepareSms({ organizationId, body, idempotencyKey: null }) })),
        ),
    }),
    ...messageSchedulingRoutes(tools, {
      channel: smsChannel,
      path: '/sms',
      scope: 'sms:send',
      tag: 'SMS',
      noun: 'an SMS',
      idNoun: 'Sms',
      named: 'number',
      nameOf: (address) => address || null,
    }),
    ...messageReadingRoutes(tools, {
      channel: smsChannel,
      path: '/sms',
      scope: 'sms:read',
      tag: 'SMS',
      list: {
        operationId: 'listSms',
        summary: 'List sent SMS with their delivery status',
        description: 'Newest first. Texts of campaigns are not in this list.',
        searched: 'Beginning of the sender or of the recipient, with or without a plus.',
        prefixesOf,
        status: smsStatus,
        category: categoryFilter,
        record: smsRecord,
        when: 'A page of texts.',
        load,
      },
      read: {
        operationId: 'getSms',
        summary: 'Read an SMS and its status',
        record: smsRecord,
        when: 'The text.',
        load,
      },
    }),
  ];
}

const load: LoadRecords<SmsRecord> = async (transaction, wanted) => {
  const parts = await loadSmsParts(transaction, wanted);
  return (message) => {
    const ofMessage = parts.get(message.id);
    return ofMessage === undefined ? null : showSms({ ...message, ...ofMessage });
  };
};

/** Numbers of senders are kept without a plus, those of recipients with one. */
function prefixesOf(search: string): SearchedPrefixes {
  const address = readNumberPrefix(search);
  return { text: address?.slice(1) ?? search, address };
}
