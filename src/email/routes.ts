import { foldAddress } from '../channels/email/email.ts';
import { groupBy } from '../platform/grouping.ts';
import type { BodyPreparation, TaskRunner } from '../platform/http/body-threads.ts';
import { badRequest, notFound, payloadTooLarge } from '../platform/http/errors.ts';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { defineRoute, type Route } from '../platform/http/route.ts';
import { createTemplateCache } from '../templates/templates.ts';
import {
  categoryFilter,
  listRecipients,
  type LoadRecords,
  messageReadingRoutes,
  messageReference,
  type MessageRouteTools,
  missingVariablesHeader,
  monthlyQuotaExceeded,
  sendingSuspended,
  warningsHeader,
} from '../messages/messages.ts';
import { renderEmailSampleTask, submitEmailTestTask } from './campaign-sample.ts';
import { showEmail } from './record.ts';
import { type EmailRecord, emailRecord, type EmailSendBody, emailSendBody, emailStatus } from './schema.ts';
import {
  attachmentRejected,
  fromThread,
  prepareContent,
  prepareEmailTask,
  prepareFromTemplate,
  type PreparedEmail,
  prepareLargeEmail,
  prepareRecalled,
} from './send.ts';

export { createEngagementRecorder, type EngagementRecorder } from './tracking/engagement.ts';
export { engagementPages } from './tracking/engagement-pages.ts';

/** What the thread that reads large bodies makes of them, by the key of the route. */
export const emailPreparations: Readonly<Record<string, BodyPreparation>> = {
  // The route's schema has checked it.
  'POST /email/send': (body) => prepareLargeEmail(body as EmailSendBody),
};

export const emailTasks = [prepareEmailTask, renderEmailSampleTask, submitEmailTestTask];

/** About 22 MB of files after Base64 growth. */
const sendBodyBytesMax = 30 * 1_048_576;

export type EmailRouteTools = MessageRouteTools & { runner: TaskRunner };

export function emailRoutes(tools: EmailRouteTools): Route[] {
  const { database, acceptor, runner } = tools;
  const cache = createTemplateCache(database);
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
        if (fromLargeBody !== null) {
          // As `prepareLargeEmail` made it.
          const submission = fromThread(fromLargeBody as PreparedEmail, { organizationId, idempotencyKey });
          return toRouteResponse(await acceptor.accept(submission, idempotencyKey, null, traceId));
        }
        const request = { organizationId, body, idempotencyKey };
        if (body.template_id === undefined) {
          const prepared = await prepareContent(runner, request);
          return toRouteResponse(await acceptor.accept(prepared, idempotencyKey, null, traceId));
        }
        const key = { organizationId, id: body.template_id };
        const prepareAnew = async () => {
          const read = await cache.read(key);
          const { email: template = null, prepared = null } = read ?? {};
          return prepareFromTemplate(runner, { ...request, template, prepared });
        };
        const recalled = prepareRecalled(request, cache.recall(key));
        return toRouteResponse(
          recalled === null
            ? await acceptor.accept(await prepareAnew(), idempotencyKey, null, traceId)
            : await acceptor.accept(recalled, idempotencyKey, prepareAnew, traceId),
        );
      },
    }),
    ...messageReadingRoutes(tools, {
      channel: 'email',
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
  ];
}

const load: LoadRecords<EmailRecord> = async (transaction, { organizationId, messageIds }) => {
  const recipients = groupBy(
    await listRecipients(transaction, organizationId, messageIds),
    ({ message_id }) => message_id,
  );
  return (message) => showEmail(message, recipients.get(message.id) ?? []);
};
