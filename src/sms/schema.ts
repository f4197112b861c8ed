import { type Static, Type } from 'typebox';
import { instant, literals } from '../platform/http/shapes.ts';
import {
  categoryInput,
  metadataInput,
  metadataRecord,
  scheduledAtInput,
  scheduledAtRecord,
  tagsInput,
  tagsRecord,
  variablesInput,
} from '../messages/messages.ts';

/** Body of `POST /sms/send`. Rules that need more than one field, or the account, are in send.ts. */
export const smsSendBody = Type.Object(
  {
    from: Type.String({
      minLength: 1,
      maxLength: 255,
      format: 'filled-line',
      description: 'The name of an approved sender of the organization; a number with or without its plus.',
    }),
    to: Type.String({ format: 'phone-number', description: 'The recipient, in E.164.' }),
    body: Type.String({
      minLength: 1,
      maxLength: 10_000,
      sensitive: true,
      description: 'The text, 1 to 1600 characters after replacement. Supports `{{variables}}`.',
    }),
    variables: Type.Optional(variablesInput('Replace `{{name}}` in the body.')),
    category: Type.Optional(categoryInput),
    metadata: Type.Optional(metadataInput),
    tags: Type.Optional(tagsInput),
    scheduled_at: Type.Optional(scheduledAtInput),
  },
  { title: 'SendSmsRequest', additionalProperties: false, rules: ['sms-length'] },
);

export type SmsSendBody = Static<typeof smsSendBody>;

export const smsStatuses = [
  'scheduled',
  'queued',
  'sending',
  'sent',
  'delivered',
  'undelivered',
  'failed',
  'expired',
  'cancelled',
] as const;

export type SmsStatus = (typeof smsStatuses)[number];

export const smsStatus = literals(smsStatuses, {
  title: 'SmsStatus',
  description:
    '`sending` after an attempt that will be repeated or whose outcome is unknown, `sent` when the provider has taken the text, and the others when the outcome is final.',
});

const orNull = <Schema extends ReturnType<typeof Type.String>>(schema: Schema) =>
  Type.Union([schema, Type.Null()]);

export const smsEncoding = literals(['gsm7', 'ucs2'], { title: 'SmsEncoding' });

const smsError = Type.Object(
  { code: Type.String(), message: Type.String() },
  { title: 'SmsError', description: 'Why it did not arrive.' },
);

/** Record of `GET /sms/:id`. */
export const smsRecord = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    from: Type.String(),
    to: orNull(Type.String({ description: 'Null after it was erased together with its contact.' })),
    body: orNull(
      Type.String({ description: 'As it was sent, with variables replaced; null after it was erased.' }),
    ),
    category: orNull(Type.String()),
    metadata: metadataRecord,
    tags: tagsRecord,
    status: smsStatus,
    encoding: smsEncoding,
    segments: Type.Integer({ description: 'How much of the quota it uses.' }),
    error: Type.Union([smsError, Type.Null()]),
    uncertain: Type.Boolean({
      description:
        'A hand-off was cut off before the response, and it is still unknown whether the provider took the message.',
    }),
    scheduled_at: scheduledAtRecord,
    created_at: instant,
    sent_at: orNull(instant),
    delivered_at: orNull(instant),
    updated_at: instant,
  },
  { title: 'SmsMessage' },
);

export type SmsRecord = Static<typeof smsRecord>;
