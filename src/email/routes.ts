import { type Static, Type } from 'typebox';
import { foldAddress } from '../channels/email/email.ts';
import { groupBy } from '../platform/grouping.ts';
import type { BodyPreparation, TaskRunner } from '../platform/http/body-threads.ts';
import { badRequest, notFound, payloadTooLarge } from '../platform/http/errors.ts';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { idParameter, listOf } from '../platform/http/shapes.ts';
import { createTemplateCache } from '../templates/templates.ts';
import {
  categoryFilter,
  findMessage,
  listMessages,
  listRecipients,
  messageNotFound,
  messageReference,
  type MessageRouteTools,
  missingVariablesHeader,
  monthlyQuotaExceeded,
  sendingSuspended,
  warningsHeader,
} from '../messages/messages.ts';
import { renderEmailSampleTask, submitEmailTestTask } from './campaign-sample.ts';
import { showEmail } from './record.ts';
import { emailRecord, type EmailSendBody, emailSendBody, emailStatus } from './schema.ts';
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

export function emailRoutes({ database, acceptor, runner, readHorizon }: EmailRouteTools): Route[] {
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
    defineRoute({
      method: 'GET',
      path: '/email',
      operationId: 'listEmails',
      scope: 'email:read',
      tag: 'Email',
      summary: 'List sent emails with their delivery status',
      description: 'Newest first. Emails of campaigns are not in this list.',
      query: Type.Object(
        {
          ...paginationParameters,
          search: Type.Optional(
            Type.String({
              minLength: 1,
              maxLength: 200,
              description: 'Beginning of the subject or of an address.',
            }),
          ),
          status: Type.Optional(emailStatus),
          category: Type.Optional(categoryFilter),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(emailRecord), when: 'A page of emails.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { search, status, category } = query;
        const filter = {
          ...(search !== undefined && { search: { text: search, address: foldAddress(search) } }),
          ...(status !== undefined && { status }),
          ...(category !== undefined && { category }),
        };
        const { rows, recipients } = await database.asOrganizations([organizationId], async (transaction) => {
          const found = await listMessages(transaction, {
            organizationId,
            channel: 'email',
            filter,
            page,
            horizon: await readHorizon(transaction, organizationId),
          });
          const ids = found.map(({ id }) => id);
          return { rows: found, recipients: await listRecipients(transaction, organizationId, ids) };
        });
        const ofMessage = groupBy(recipients, ({ message_id }) => message_id);
        return json(toList(rows, page, (row) => showEmail(row, ofMessage.get(row.id) ?? [])));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/email/:id',
      operationId: 'getEmail',
      scope: 'email:read',
      tag: 'Email',
      summary: 'Read an email and the status of each recipient',
      params: idParameter,
      success: { statusCode: 200, schema: emailRecord, when: 'The email.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params }) => {
        const { id } = params;
        const email = await database.asOrganizations([organizationId], async (transaction) => {
          const horizon = await readHorizon(transaction, organizationId);
          const [message, recipients] = await Promise.all([
            findMessage(transaction, { organizationId, id, channel: 'email', horizon }),
            listRecipients(transaction, organizationId, [id]),
          ]);
          if (message === null) throw messageNotFound(horizon, id);
          return showEmail(message, recipients);
        });
        return json(email satisfies Static<typeof emailRecord>);
      },
    }),
  ];
}
