import { type Static, type TSchema, Type } from 'typebox';
import { contactReferenceFields } from '../audience/audience.ts';
import { templateCategories } from '../channels/chatapp/template.ts';
import {
  metadataInput,
  metadataRecord,
  scheduledAtInput,
  scheduledAtRecord,
  tagsInput,
  tagsRecord,
} from '../messages/messages.ts';
import { instant, literals } from '../platform/http/shapes.ts';

/** A value is no longer than a whole filled text may be. */
export const valueLengthMax = 4_096;
/** More than any template has room for. */
export const parametersMax = 200;

/** Body of `POST /chatapp/send`. Rules that need more than one field, or the account, are in send.ts. */
export const chatAppSendBody = Type.Object(
  {
    to: Type.Optional(
      Type.String({
        format: 'phone-number',
        description: 'The recipient, in E.164. Instead of a contact.',
      }),
    ),
    ...contactReferenceFields,
    template_id: Type.Optional(
      Type.String({ maxLength: 255, description: 'The template, or name it by `template` and `language`.' }),
    ),
    template: Type.Optional(
      Type.String({ minLength: 1, maxLength: 512, format: 'single-line', description: 'Its name.' }),
    ),
    language: Type.Optional(
      Type.String({ minLength: 1, maxLength: 32, format: 'single-line', description: 'As in `en_US`.' }),
    ),
    parameters: Type.Optional(
      Type.Record(Type.String(), Type.String({ maxLength: valueLengthMax, sensitive: true }), {
        maxProperties: parametersMax,
        description:
          'A text for each placeholder of the template, by its name; for an authentication template the one-time ' +
          'code, as `code`. Without line breaks, tabs, or more than four blanks in a row.',
      }),
    ),
    metadata: Type.Optional(metadataInput),
    tags: Type.Optional(tagsInput),
    scheduled_at: Type.Optional(scheduledAtInput),
  },
  { title: 'SendChatAppRequest', additionalProperties: false, rules: ['chatapp-template'] },
);

export type ChatAppSendBody = Static<typeof chatAppSendBody>;

export const chatAppStatuses = [
  'scheduled',
  'queued',
  'sent',
  'delivered',
  'read',
  'failed',
  'cancelled',
] as const;

export type ChatAppStatus = (typeof chatAppStatuses)[number];

export const chatAppStatus = literals(chatAppStatuses, {
  title: 'ChatAppStatus',
  description:
    '`sent` once the provider has taken it, `delivered` once it is on the phone, `read` once it was opened there, which ' +
    'people can keep to themselves.',
});

export const chatAppCategory = literals(templateCategories, { title: 'ChatAppCategory' });

const orNull = <Schema extends TSchema>(schema: Schema) => Type.Union([schema, Type.Null()]);

const chatAppError = Type.Object(
  { code: Type.String(), message: Type.String() },
  { title: 'ChatAppError', description: 'Why it did not arrive.' },
);

/** Record of `GET /chatapp/:id`. */
export const chatAppRecord = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    to: orNull(Type.String({ description: 'Null after it was erased together with its contact.' })),
    contact_id: orNull(
      Type.String({
        format: 'uuid',
        description:
          'Of the contact that the request named; null if it named a number, or once it was erased.',
      }),
    ),
    template_id: orNull(Type.String({ format: 'uuid' })),
    template: Type.String({ description: 'The name of the template.' }),
    language: Type.String(),
    category: chatAppCategory,
    metadata: metadataRecord,
    tags: tagsRecord,
    parameters: Type.Record(Type.String(), Type.String(), {
      description: 'A one-time code is never shown. Empty after they were erased together with the contact.',
    }),
    status: chatAppStatus,
    error: Type.Union([chatAppError, Type.Null()]),
    uncertain: Type.Boolean({
      description:
        'A hand-off was cut off before the response, and it is still unknown whether the provider took the message.',
    }),
    scheduled_at: scheduledAtRecord,
    created_at: instant,
    sent_at: orNull(instant),
    delivered_at: orNull(instant),
    read_at: orNull(instant),
    updated_at: instant,
  },
  { title: 'ChatAppMessage' },
);

export type ChatAppRecord = Static<typeof chatAppRecord>;
