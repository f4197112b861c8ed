import { setImmediate } from 'node:timers/promises';
import { foldAddress } from '../channels/email/email.ts';
import { groupBy } from '../platform/grouping.ts';
import type { BodyPreparation, TaskRunner } from '../platform/http/body-threads.ts';
import { badRequest, notFound, payloadTooLarge, PublicError } from '../platform/http/errors.ts';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { defineRoute, type Route } from '../platform/http/route.ts';
import {
  batchBytesMax,
  batchRoute,
  categoryFilter,
  describeBatchItem,
  listRecipients,
  type LoadRecords,
  messageReadingRoutes,
  messageReference,
  messageSchedulingRoutes,
  type MessageRouteTools,
  missingVariablesHeader,
  monthlyQuotaExceeded,
  type PreparedItem,
  prepareLargeBatch,
  sendingSuspended,
  warningsHeader,
} from '../messages/messages.ts';
import { renderEmailSampleTask, submitEmailTestTask } from './campaign-sample.ts';
import { contentTasks, emailContentRoutes } from './content-routes.ts';
import { emailChannel } from './channel.ts';
import { showEmail } from './record.ts';
import { type EmailRecord, emailRecord, type EmailSendBody, emailSendBody, emailStatus } from './schema.ts';
import { attachmentRejected, prepareEmailTask, type PreparedEmail, prepareLargeEmail } from './send.ts';
import { createEmailSending, type EmailItem, prepareEmails, readEmails } from './sending.ts';

export { createEngagementRecorder, type EngagementRecorder } from './tracking/engagement.ts';
export { engagementPages } from './tracking/engagement-pages.ts';

/** What the thread that reads large bodies makes of them, by the key of the route. */
export const emailPreparations: Readonly<Record<string, BodyPreparation>> = {
  // The route's schema has checked it.
  'POST /email/send': (body) => prepareLargeEmail(body as EmailSendBody),
  'POST /email/send/batch': prepareLargeBatch('emails', prepareEmails),
};

/** By title, what stands in the place of the schemas of those titles in the description of the API. */
export function describeBatchedEmails() {
  return { BatchedEmail: describeBatchItem(emailSendBody) };
}

export const emailTasks = [prepareEmailTask, renderEmailSampleTask, submitEmailTestTask, ...contentTasks];

/** About 22 MB of files after Base64 growth. */
const sendBodyBytesMax = 30 * 1_048_576;

const tooLargeWhenFilled =
  'The emails of a batch may have 30 MB together, also when their templates are filled in. Send fewer at once.';

export type EmailRouteTools = MessageRouteTools & { runner: TaskRunner };

export function emailRoutes(tools: EmailRouteTools): Route[] {
  const { prepare, send } = createEmailSending(tools);
  return [
    defineRoute({
      method: 'POST',
      path: '/email/send',
      operationId: 'sendEmail',
      scope: 'email:send',
      tag: 'Email',
      summary: 'Send a transactional email',
      description:
        'The email is stored and queued before the response is sent. Each address is checked afterwards: those that fail are dropped, and the email is sent to the others. Read the email to see the status of each recipient.',
      body: emailSendBody,
      bodyBytesMax: sendBodyBytesMax,
      isIdempotent: true,
      success: {
        statusCode: 202,
        schema: messageReference,
        when: 'Accepted for delivery.',
        headers: { ...missingVariablesHeader, ...warningsHeader },
      },
      errors: [
        badRequest,
        attachmentRejected,
        sendingSuspended,
        notFound,
        payloadTooLarge,
        monthlyQuotaExceeded,
        ...idempotencyErrors,
      ],
      handle: async ({ caller, body, prepared: fromLargeBody, idempotencyKey, traceId }) => {
        const { organizationId } = caller;
        const item: EmailItem =
          fromLargeBody === null
            ? { kind: 'body', body }
            : { kind: 'prepared', prepared: fromLargeBody as PreparedEmail }; // As `prepareLargeEmail` made it.
        return toRouteResponse(await send({ organizationId, idempotencyKey }, item, traceId));
      },
    }),
    batchRoute(tools, {
      path: '/email/send',
      operationId: 'sendEmailBatch',
      scope: 'email:send',
      tag: 'Email',
      noun: 'transactional emails',
      field: 'emails',
      titles: { body: 'SendEmailBatchRequest', item: 'BatchedEmail' },
      errors: [badRequest, attachmentRejected, sendingSuspended, notFound, monthlyQuotaExceeded],
      read: readEmails,
      prepare: async (organizationId, items) => {
        const prepared: PreparedItem[] = [];
        let bytes = 0;
        // One after the other: each template is read once, and what is large has one thread.
        for (const item of items) {
          const one = await prepare({ organizationId, idempotencyKey: null }, item);
          prepared.push(one);
          bytes += one.prepared instanceof PublicError ? 0 : one.prepared.content.length;
          // A template that is named in a few octets may be of two megabytes.
          if (bytes > batchBytesMax) throw new PublicError(payloadTooLarge, tooLargeWhenFilled);
          // Others have their turns in between: 500 take as long as 500 requests.
          await setImmediate();
        }
        return prepared;
      },
    }),
    ...messageSchedulingRoutes(tools, {
      channel: emailChannel,
      path: '/email',
      scope: 'email:send',
      tag: 'Email',
      noun: 'an email',
      idNoun: 'Email',
      named: 'address',
      nameOf: (address) => address || null,
    }),
    ...messageReadingRoutes(tools, {
      channel: emailChannel,
      path: '/email',
      scope: 'email:read',
      tag: 'Email',
      list: {
        operationId: 'listEmails',
        summary: 'List sent emails with their delivery status',
        description: 'Newest first. Emails of campaigns are not in this list.',
        searched: 'Beginning of the subject or of an address.',
        prefixesOf: (search) => ({ text: search, address: foldAddress(search) }),
        status: emailStatus,
        category: categoryFilter,
        record: emailRecord,
        when: 'A page of emails.',
        load,
      },
      read: {
        operationId: 'getEmail',
        summary: 'Read an email and the status of each recipient',
        record: emailRecord,
        when: 'The email.',
        load,
      },
    }),
    ...emailContentRoutes(tools),
  ];
}

const load: LoadRecords<EmailRecord> = async (transaction, { organizationId, messageIds }) => {
  const recipients = groupBy(
    await listRecipients(transaction, organizationId, messageIds),
    ({ message_id }) => message_id,
  );
  return (message) => showEmail(message, recipients.get(message.id) ?? []);
};
