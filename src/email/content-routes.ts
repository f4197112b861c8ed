import { toRouteResponse } from '../platform/http/acceptance.ts';
import { largeBodyBytesMin, type TaskRunner, type ThreadTask } from '../platform/http/body-threads.ts';
import { badRequest, conflict, notFound, PublicError } from '../platform/http/errors.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { idParameter } from '../platform/http/shapes.ts';
import {
  messageReference,
  type MessageRouteTools,
  monthlyQuotaExceeded,
  type Prepared,
  sendingSuspended,
} from '../messages/messages.ts';
import { createKeptContents } from './kept-content.ts';
import { prepareResent, readdressEmailTask } from './resending.ts';
import { showContent, type ShownContent } from './record.ts';
import { emailContentRecord, emailResendBody } from './schema.ts';
import { checkCounts } from './send.ts';

/** Shows a large content, as JSON. */
const showEmailContentTask: ThreadTask<ShownContent, Uint8Array> = {
  name: 'show email content',
  run: (input) => new TextEncoder().encode(JSON.stringify(showContent(input))),
};

export const contentTasks = [showEmailContentTask, readdressEmailTask];

/** What an email said, and the same once more. */
export function emailContentRoutes(tools: MessageRouteTools & { runner: TaskRunner }): Route[] {
  const { acceptor, runner } = tools;
  const contents = createKeptContents(tools);
  return [
    defineRoute({
      method: 'GET',
      path: '/email/:id/content',
      operationId: 'getEmailContent',
      scope: 'email:read',
      tag: 'Email',
      summary: 'Read what an email said',
      description:
        'With variables replaced and without tracking, for as long as content is kept. Of attachments, names and sizes are shown.',
      params: idParameter,
      success: { statusCode: 200, schema: emailContentRecord, when: 'The content.' },
      errors: [notFound],
      handle: ({ caller: { organizationId }, params: { id } }) =>
        contents.read({ organizationId, id }, async (email) => {
          if (email instanceof PublicError) throw email;
          const { message, content } = email;
          const shown: ShownContent = { message, content };
          return content.length < largeBodyBytesMin
            ? json(showContent(shown))
            : { kind: 'written', json: await runner.run(showEmailContentTask, shown) };
        }),
    }),
    defineRoute({
      method: 'POST',
      path: '/email/:id/resend',
      operationId: 'resendEmail',
      scope: 'email:send',
      tag: 'Email',
      summary: 'Send an email once more',
      description:
        'A new email with the same sender, content, category and metadata, to the same recipients or to others. It is checked and counted as any other. An email with attachments cannot be sent again.',
      params: idParameter,
      body: emailResendBody,
      isBodyOptional: true,
      isIdempotent: true,
      success: { statusCode: 202, schema: messageReference, when: 'Accepted for delivery.' },
      errors: [badRequest, sendingSuspended, notFound, conflict, monthlyQuotaExceeded, ...idempotencyErrors],
      handle: async ({
        caller: { organizationId },
        params: { id },
        body: { to },
        idempotencyKey,
        traceId,
      }) => {
        const accept = async (prepared: Prepared) =>
          toRouteResponse(await acceptor.accept(prepared, idempotencyKey, null, traceId));
        const refusal = to === undefined ? null : checkCounts({ to });
        if (refusal !== null) return accept(refusal);
        return contents.read({ organizationId, id }, async (email) => {
          if (email instanceof PublicError) return accept(email);
          return accept(
            await prepareResent(runner, { organizationId, email, to: to ?? null, idempotencyKey }),
          );
        });
      },
    }),
  ];
}
