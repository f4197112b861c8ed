import type { Peer } from '../../platform/http/wire.ts';
import { refuseUnknown } from '../unknown.ts';
import type { UnsupportedCall, UnsupportedField, Wire } from '../wire.ts';
import { showBatch, showSent, toBatch, toEmail, toTemplateBatch } from './emails.ts';
import { showError } from './errors.ts';

export const postmarkCalls: readonly UnsupportedCall[] = [
  { path: '/email/bulk', call: 'sendBulkEmail', instead: '/v1/email/campaigns' },
  { path: '/messages/outbound', call: 'getOutboundMessages', instead: '/v1/email' },
  { path: '/messages/inbound', call: 'getInboundMessages', instead: 'mail is sent, and not received' },
  { path: '/bounces', call: 'getBounces', instead: '/v1/suppressions, and webhooks' },
  { path: '/message-streams', call: 'getSuppressions, getMessageStreams', instead: '/v1/suppressions' },
  { path: '/templates', call: 'getTemplates', instead: '/v1/templates' },
  { path: '/stats', call: 'getOutboundOverview', instead: 'not yet' },
  { path: '/webhooks', call: 'getWebhooks', instead: '/v1/webhooks' },
  { path: '/server', call: 'getServer', instead: 'keys are made by the operator' },
];

export const postmarkFields: readonly UnsupportedField[] = [
  {
    field: 'TrackOpens and TrackLinks',
    example: { TrackOpens: true },
    instead: 'tracking is a setting of the sending domain',
  },
  {
    field: 'MessageStream other than outbound',
    example: { MessageStream: 'broadcast' },
    instead: 'campaigns',
  },
  {
    field: 'TemplateModel with lists or objects in it',
    example: { TemplateAlias: '01890000-0000-7000-8000-000000000000', TemplateModel: { items: [1] } },
    instead: 'texts, numbers and booleans',
  },
];

const peer: Peer = {
  prefix: '/compat/postmark',
  keyHeader: 'x-postmark-server-token',
  showError,
  refuseUnknown: (asked) => refuseUnknown(postmarkCalls, asked),
};

/** What programs may ask that use Postmark's SDK. */
export const postmarkWires: readonly Wire[] = [
  ...(
    [
      ['/email', 'sendEmail'],
      ['/email/withTemplate', 'sendEmailWithTemplate'],
    ] as const
  ).map(([path, call]): Wire => ({
    peer,
    method: 'POST',
    path,
    call,
    translateBody: toEmail,
    carriedOutBy: (routeOf) => routeOf('POST /email/send'),
    showAnswer: (body) => ({ statusCode: 200, body: showSent(body as Parameters<typeof showSent>[0]) }),
  })),
  ...(
    [
      ['/email/batch', 'sendEmailBatch', toBatch],
      ['/email/batchWithTemplates', 'sendEmailBatchWithTemplates', toTemplateBatch],
    ] as const
  ).map(([path, call, translateBody]): Wire => ({
    peer,
    method: 'POST',
    path,
    call,
    translateBody,
    carriedOutBy: (routeOf) => routeOf('POST /email/send/batch'),
    showAnswer: (body) => ({ statusCode: 200, body: showBatch(body as Parameters<typeof showBatch>[0]) }),
  })),
];
