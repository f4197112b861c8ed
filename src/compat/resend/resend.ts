import type { EmailContentRecord, EmailRecord } from '../../email/email.ts';
import { notFound, PublicError } from '../../platform/http/errors.ts';
import { json, type Route } from '../../platform/http/route.ts';
import type { Peer } from '../../platform/http/wire.ts';
import { isObject } from '../fields.ts';
import { refuseUnknown } from '../unknown.ts';
import type { UnsupportedCall, UnsupportedField, Wire } from '../wire.ts';
import { showEmail, toBatch, toEmail } from './emails.ts';
import { showError } from './errors.ts';

export const resendCalls: readonly UnsupportedCall[] = [
  { path: '/emails/:id/cancel', call: 'emails.cancel', instead: 'not yet' },
  { path: '/emails/:id/share', call: 'emails.share', instead: 'there are no public links to emails' },
  { path: '/emails/metrics', call: 'emails.metrics', instead: 'not yet' },
  { path: '/emails/receiving', call: 'emails.receiving', instead: 'mail is sent, and not received' },
  { path: '/domains', call: 'domains', instead: '/v1/email/domains' },
  { path: '/audiences', call: 'audiences', instead: '/v1/lists' },
  { path: '/segments', call: 'segments', instead: '/v1/segments' },
  { path: '/contacts', call: 'contacts', instead: '/v1/contacts' },
  { path: '/broadcasts', call: 'broadcasts', instead: '/v1/email/campaigns' },
  { path: '/templates', call: 'templates', instead: '/v1/templates' },
  { path: '/suppressions', call: 'suppressions', instead: '/v1/suppressions' },
  { path: '/webhooks', call: 'webhooks', instead: '/v1/webhooks' },
  { path: '/api-keys', call: 'apiKeys', instead: 'keys are made by the operator' },
];

export const resendFields: readonly UnsupportedField[] = [
  {
    field: 'scheduledAt in words',
    example: { scheduled_at: 'in 1 hour' },
    instead: 'a time in ISO 8601, with an offset',
  },
  { field: 'topicId', example: { topic_id: 'news' }, instead: 'lists of contacts, and campaigns' },
  {
    field: 'replyTo with several addresses',
    example: { reply_to: ['a@example.com', 'b@example.com'] },
    instead: 'one address',
  },
  {
    field: 'attachments[].path',
    example: { attachments: [{ path: 'https://example.com/a.pdf' }] },
    instead: '`content`',
  },
  {
    field: 'tags with a name of more than 40 characters, or more than twenty',
    example: { tags: [{ name: 'x'.repeat(41), value: 'y' }] },
    instead: 'tags are the `metadata` of the email',
  },
];

const peer: Peer = {
  prefix: '/compat/resend',
  showError,
  refuseUnknown: (asked) => refuseUnknown(resendCalls, asked),
};

/** What programs may ask that use Resend's SDK. */
export const resendWires: readonly Wire[] = [
  {
    peer,
    method: 'POST',
    path: '/emails',
    call: 'emails.send',
    carriedOutBy: (routeOf) => routeOf('POST /email/send'),
    translateBody: toEmail,
    showAnswer: (body) => ({ statusCode: 200, body }),
  },
  {
    peer,
    method: 'POST',
    path: '/emails/batch',
    call: 'batch.send',
    carriedOutBy: (routeOf) => routeOf('POST /email/send/batch'),
    translateBody: toBatch,
    translatedHeaders: ['x-batch-validation'],
    showAnswer: (body) => ({ statusCode: 200, body: showBatch(body) }),
  },
  {
    peer,
    method: 'GET',
    path: '/emails',
    call: 'emails.list',
    carriedOutBy: (routeOf) => routeOf('GET /email'),
    translateBody: null,
    showAnswer: (body) => {
      const { data, has_more } = body as { data: EmailRecord[]; has_more: boolean };
      const shown = data.map((email) => {
        const { tags: _tags, ...listed } = showEmail(email);
        return listed;
      });
      return { statusCode: 200, body: { object: 'list', has_more, data: shown } };
    },
  },
  {
    peer,
    method: 'GET',
    path: '/emails/:id',
    call: 'emails.get',
    carriedOutBy: (routeOf) => withContent(routeOf('GET /email/:id'), routeOf('GET /email/:id/content')),
    translateBody: null,
    showAnswer: (body) => {
      const { email, content } = body as EmailWithContent;
      const { html = null, text = null } = content ?? {};
      return { statusCode: 200, body: { object: 'email', ...showEmail(email), html, text } };
    },
  },
];

type EmailWithContent = { email: EmailRecord; content: EmailContentRecord | null };

/** Without its content where that is not kept any more. */
function withContent(readEmail: Route, readContent: Route): Route {
  return {
    ...readEmail,
    handle: async (request) => {
      const email = bodyOf(await readEmail.handle(request));
      const content = await readContent.handle(request).then(bodyOf, (cause: unknown) => {
        if (cause instanceof PublicError && cause.definition === notFound) return null;
        throw cause;
      });
      return json({ email, content });
    },
  };
}

function bodyOf(response: Awaited<ReturnType<Route['handle']>>): unknown {
  switch (response.kind) {
    case 'json':
      return response.body;
    case 'written':
      return JSON.parse(Buffer.from(response.json).toString());
    case 'stored':
      return JSON.parse(response.response.text);
  }
}

/** Errors are those of a batch that leaves out what is wrong. */
function showBatch(body: unknown): unknown {
  const { data } = body as { data: { index: number; id?: string; error?: { message: string } }[] };
  const sent = data.flatMap(({ id }) => (id === undefined ? [] : [{ id }]));
  const errors = data.flatMap(({ index, error }) =>
    isObject(error) ? [{ index, message: error.message }] : [],
  );
  return { data: sent, ...(errors.length > 0 && { errors }) };
}
