import { Type } from 'typebox';
import { sendingChannels } from '../channels/channel.ts';
import { failureClasses } from '../channels/outcome.ts';
import { valueNamePattern } from '../channels/placeholders.ts';
import { instant, literals, referenceOf, scalar, textOrNull } from '../platform/http/shapes.ts';
import { metadataRecord, tagsRecord } from './labels.ts';

/** Values for placeholders, by name. */
export const variablesInput = (description: string) =>
  Type.Record(Type.String({ pattern: valueNamePattern }), scalar, {
    description,
    additionalProperties: false,
  });

export const categoryInput = Type.String({
  minLength: 1,
  maxLength: 100,
  format: 'filled-line',
  composed: true,
  description: 'A label for analytics.',
});

/** In a query: messages of this category alone. */
export const categoryFilter = Type.String({ minLength: 1, maxLength: 100, composed: true });

export const recipientStatuses = [
  'sent',
  'delayed',
  'delivered',
  'opened',
  'clicked',
  'bounced',
  'failed',
  'complained',
  'unsubscribed',
  'cancelled',
] as const;

export type RecipientStatus = (typeof recipientStatuses)[number];

export const dropReasons = [
  'invalid_domain',
  'no_mx',
  'null_mx',
  'disposable',
  'suppressed',
  'unreachable',
  'duplicate',
] as const;

/** For a campaign's recipients. The added reasons are changes since the audience was frozen. */
export const campaignDropReasons = [...dropReasons, 'unsubscribed', 'no_address', 'contact_deleted'] as const;

export type DropReason = (typeof campaignDropReasons)[number];

export const messageStatuses = [
  'scheduled',
  'queued',
  'sent',
  'partially_delivered',
  'delivered',
  'failed',
  'cancelled',
] as const;

export type MessageStatus = (typeof messageStatuses)[number];

const optional = <Schema extends ReturnType<typeof Type.String>>(schema: Schema) =>
  Type.Union([schema, Type.Null()]);

const bounce = Type.Object(
  {
    type: literals(['hard', 'soft']),
    class: literals(failureClasses, { title: 'FailureClass' }),
    smtp_code: Type.Union([Type.Integer(), Type.Null()]),
    enhanced_code: optional(Type.String()),
    diagnostic: optional(Type.String()),
    remote_mta: optional(Type.String()),
  },
  { title: 'Bounce' },
);

/** The fields of a recipient's outcome apart from its status, for messages of all channels. */
export const fateFields = {
  uncertain: Type.Boolean({
    description:
      'A hand-off was cut off before the response, and it is still unknown whether the provider took the message.',
  }),
  bounce: Type.Union([bounce, Type.Null()]),
  opened_at: optional(instant),
  clicked_at: optional(instant),
};

/** The response to a request to send. */
export const messageReference = referenceOf('MessageReference');

/** What programs are told of a recipient (told-events.ts). Of what is gone, `object` and `id` are left. */
export const toldRecipient = Type.Object(
  {
    object: literals(sendingChannels),
    id: Type.String({ format: 'uuid', description: 'Of the message.' }),
    from: Type.Optional(textOrNull),
    subject: Type.Optional(textOrNull),
    category: Type.Optional(textOrNull),
    template_id: Type.Optional(Type.Union([Type.String({ format: 'uuid' }), Type.Null()])),
    campaign_id: Type.Optional(Type.Union([Type.String({ format: 'uuid' }), Type.Null()])),
    metadata: Type.Optional(metadataRecord),
    tags: Type.Optional(tagsRecord),
    created_at: Type.Optional(instant),
    recipient: Type.Optional(
      Type.Object(
        {
          address: textOrNull,
          contact_id: Type.Union([Type.String({ format: 'uuid' }), Type.Null()]),
          device_id: Type.Union([Type.String({ format: 'uuid' }), Type.Null()]),
          status: Type.String({ description: 'What happened: the last part of the type.' }),
          status_at: instant,
          drop_reason: textOrNull,
          bounce: Type.Union([bounce, Type.Null()]),
          actor: Type.Optional(
            literals(['human', 'machine'] as const, {
              description: 'Who opened or clicked, as far as that shows.',
            }),
          ),
        },
        { title: 'WebhookEventRecipient', description: 'As the event left it.' },
      ),
    ),
  },
  {
    title: 'WebhookEventMessage',
    description:
      'A message, and what became of one of its recipients. Of a message that is gone, `object` and `id` are left.',
  },
);
