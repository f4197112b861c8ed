import { type Static, type TObject, type TProperties, type TSchema, Type } from 'typebox';
import { contactReferenceFields } from '../audience/audience.ts';
import { hasHttpsHost } from '../channels/push/endpoint.ts';
import { pushPlatforms, pushPriorities } from '../channels/push/notification.ts';
import {
  metadataInput,
  metadataRecord,
  scheduledAtInput,
  scheduledAtRecord,
  tagsInput,
  tagsRecord,
} from '../messages/messages.ts';
import { instant, literals, optional, optionalText, textOrNull } from '../platform/http/shapes.ts';
import { parseUrl } from '../platform/url.ts';
import type { TextFormat } from '../platform/http/validation.ts';

/** Text formats of this room's schemas, to be handed to `createValidation`. */
export const pushFormats: Record<'https-url', TextFormat> = {
  'https-url': { test: isHttpsUrl, mustBe: 'an https URL such as https://cdn.example.com/a.png' },
};

/** Devices fetch it, and show nothing that comes without TLS. */
export function isHttpsUrl(text: string): boolean {
  return !/\s/.test(text) && hasHttpsHost(text) && parseUrl(text) !== null;
}

export const orNull = <Schema extends TSchema>(schema: Schema) => Type.Union([schema, Type.Null()]);

export const titleLengthMax = 200;
export const bodyLengthMax = 1_000;
export const labelLengthMax = 64;
export const urlLengthMax = 2_048;

const deepLink = Type.String({
  minLength: 1,
  maxLength: urlLengthMax,
  format: 'filled-line',
  sensitive: true,
  description: 'What a tap opens: a URL, or a link of the app.',
});

const httpsUrl = (description: string) =>
  Type.String({ maxLength: urlLengthMax, format: 'https-url', sensitive: true, description });

const actionIdLengthMax = 64;

const actionButton = Type.Object(
  {
    action_id: Type.String({
      minLength: 1,
      maxLength: actionIdLengthMax,
      format: 'filled-line',
      description: 'Comes back with the click.',
    }),
    label: Type.String({ minLength: 1, maxLength: labelLengthMax, format: 'filled-line' }),
    deep_link: Type.Optional(deepLink),
  },
  { additionalProperties: false, title: 'ActionButton' },
);

/** What a push says, by the names of the API; also of a campaign. */
const pushContentFields = {
  title: Type.String({ minLength: 1, maxLength: titleLengthMax, format: 'filled-line', sensitive: true }),
  body: Type.String({ minLength: 1, maxLength: bodyLengthMax, format: 'not-blank', sensitive: true }),
  image_url: Type.Optional(httpsUrl('A large image.')),
  icon_url: Type.Optional(httpsUrl('A small image beside the title; on iOS it is always the app’s own.')),
  deep_link: Type.Optional(deepLink),
  android_channel_id: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 128,
      format: 'filled-line',
      description: 'The notification channel of the Android app.',
    }),
  ),
  ttl_seconds: Type.Optional(
    Type.Integer({
      minimum: 60,
      maximum: 2_419_200,
      description: 'How long it is worth showing. After that it is given up. Four weeks if it is left out.',
    }),
  ),
  priority: Type.Optional(
    literals(pushPriorities, { description: 'Whether it may wake a sleeping device.' }),
  ),
  action_buttons: Type.Optional(Type.Array(actionButton, { maxItems: 3 })),
  data_payload: Type.Optional(
    Type.Record(Type.String(), Type.String({ sensitive: true }), {
      description:
        'Texts for the app. No key may begin with `postillion_`, `gcm` or `google`, or be `aps`, `from`, ' +
        '`notification`, `message_type` or `collapse_key`.',
    }),
  ),
};

export type PushContentBody = Static<TObject<typeof pushContentFields>>;

const category = {
  minLength: 1,
  maxLength: 64,
  format: 'filled-line',
  description: 'A label for analytics.',
};

/** The same as inputs of a campaign, each of which may be left out, or null. */
export const pushCampaignFields: TProperties = {
  ...Object.fromEntries(Object.entries(pushContentFields).map(([name, field]) => [name, toInput(field)])),
  title: toInput({
    ...pushContentFields.title,
    description:
      'Supports `{{variables}}`, as do the body, the links, the labels of buttons and the texts of `data_payload`. All ' +
      'limits also hold after they are replaced.',
  }),
  category: optionalText(category),
};

/** What such a campaign says, in responses. Null is what it does not have. */
export const pushTextsRecord = {
  title: textOrNull,
  body: textOrNull,
  image_url: textOrNull,
  icon_url: textOrNull,
  deep_link: textOrNull,
  action_buttons: orNull(Type.Array(actionButton)),
  data_payload: orNull(Type.Record(Type.String(), Type.String())),
};

function toInput(field: TSchema): TSchema {
  const { type, enum: values, ...rules } = field as { type: string; enum?: readonly string[] };
  return optional(type, { ...rules, ...(values !== undefined && { enum: [...values, null] }) });
}

/** Body of `POST /push/send`. What needs the account is in send.ts. */
export const pushSendBody = Type.Object(
  {
    ...contactReferenceFields,
    ...pushContentFields,
    category: Type.Optional(Type.String(category)),
    metadata: Type.Optional(metadataInput),
    tags: Type.Optional(tagsInput),
    scheduled_at: Type.Optional(scheduledAtInput),
  },
  { title: 'SendPushRequest', additionalProperties: false, rules: ['push-content'] },
);

export type PushSendBody = Static<typeof pushSendBody>;

export const pushStatuses = ['scheduled', 'queued', 'sent', 'skipped', 'failed', 'cancelled'] as const;

export type PushStatus = (typeof pushStatuses)[number];

export const pushStatus = literals(pushStatuses, {
  title: 'PushStatus',
  description:
    '`sent` once the service of one device has taken it, `skipped` if there was no device to send it to, `failed` if ' +
    'it could be sent to none.',
});

export const engagementTypes = ['delivered', 'displayed', 'clicked', 'dismissed'] as const;

const engagementEvent = Type.Object(
  {
    event_id: Type.String({
      minLength: 1,
      maxLength: 64,
      description: 'Of your choice, and the same when the event is reported again: it counts once.',
    }),
    message_id: Type.String({ format: 'uuid', description: 'As it came with the push.' }),
    type: literals(engagementTypes),
    action_id: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: actionIdLengthMax,
        description: 'Of the button, with `clicked` only.',
      }),
    ),
    occurred_at: Type.String({
      format: 'date-time',
      description: 'By the clock of the device. A time from before the push, or in the future, is put right.',
    }),
  },
  { title: 'PushEvent', additionalProperties: false, rules: ['push-event'] },
);

export type EngagementEvent = Static<typeof engagementEvent>;

/** Body of `POST /push/engagements`. */
export const engagementsBody = Type.Object(
  {
    installation_id: Type.String({
      minLength: 1,
      maxLength: 255,
      sensitive: true,
      description: 'The one that the device is registered by.',
    }),
    events: Type.Array(engagementEvent, { minItems: 1, maxItems: 100 }),
  },
  { title: 'ReportEngagementsRequest', additionalProperties: false },
);

export const engagementCounts = Type.Object(
  {
    accepted: Type.Integer(),
    duplicate: Type.Integer({ description: 'Known already.' }),
    rejected: Type.Integer({
      description:
        'Of no push to this device, or of a time more than a day ahead. To report them again is of no use.',
    }),
  },
  { title: 'PushEngagementCounts' },
);

export type EngagementCounts = Static<typeof engagementCounts>;

export const deviceFates = [
  'queued',
  'sent',
  'delivered',
  'displayed',
  'clicked',
  'dismissed',
  'expired',
  'failed',
  'cancelled',
] as const;

/** What became of a push on one device. */
export type DeviceFate = (typeof deviceFates)[number];

const pushError = Type.Object(
  { code: Type.String(), message: Type.String() },
  { title: 'PushError', description: 'Why the device did not get it.' },
);

const pushDevice = Type.Object(
  {
    device_id: orNull(
      Type.String({ format: 'uuid', description: 'Null once it was erased with its contact.' }),
    ),
    platform: orNull(literals(pushPlatforms)),
    status: literals(deviceFates, {
      title: 'PushDeviceStatus',
      description:
        '`sent` says that the service of its platform has it; what comes after that is reported by the app on the ' +
        'device. `expired`: it could not be handed over before its time was over.',
    }),
    error: Type.Union([pushError, Type.Null()]),
    uncertain: Type.Boolean({
      description: 'A hand-off was cut off before its answer, and nothing has settled it yet.',
    }),
    attempted_at: orNull(instant),
    delivered_at: orNull(instant),
    displayed_at: orNull(instant),
    clicked_at: orNull(instant),
    dismissed_at: orNull(instant),
    action_id: orNull(Type.String({ description: 'Of the button that was clicked.' })),
  },
  { title: 'PushDelivery' },
);

export type PushDeviceRecord = Static<typeof pushDevice>;

const sharedFields = {
  id: Type.String({ format: 'uuid' }),
  contact_id: orNull(Type.String({ format: 'uuid', description: 'Null once the contact was erased.' })),
  title: orNull(Type.String({ description: 'Null once it was erased, as the rest of what it says.' })),
  body: textOrNull,
  image_url: textOrNull,
  icon_url: textOrNull,
  deep_link: textOrNull,
  android_channel_id: textOrNull,
  category: textOrNull,
  metadata: metadataRecord,
  tags: tagsRecord,
  ttl_seconds: Type.Union([Type.Integer(), Type.Null()]),
  priority: textOrNull,
  action_buttons: Type.Array(
    Type.Object(
      { action_id: Type.String(), label: Type.String(), deep_link: textOrNull },
      { title: 'ShownButton' },
    ),
  ),
  data_payload: Type.Record(Type.String(), Type.String()),
  status: pushStatus,
};

const times = { scheduled_at: scheduledAtRecord, created_at: instant, updated_at: instant };

/** Record of `GET /push/:id`. */
export const pushRecord = Type.Object(
  { ...sharedFields, devices: Type.Array(pushDevice), ...times },
  { title: 'PushMessage' },
);

export type PushRecord = Static<typeof pushRecord>;

/** An item of `GET /push`. */
export const listedPushRecord = Type.Object(
  {
    ...sharedFields,
    device_counts: Type.Object(
      Object.fromEntries(deviceFates.map((fate) => [fate, Type.Integer()])) as Record<
        DeviceFate,
        ReturnType<typeof Type.Integer>
      >,
      { title: 'PushDeviceCounts', description: 'How many devices have each status.' },
    ),
    ...times,
  },
  { title: 'ListedPushMessage' },
);

export type ListedPushRecord = Static<typeof listedPushRecord>;
