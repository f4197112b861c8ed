import { type Static, Type } from 'typebox';
import { instant, literals, optionalText, textOrNull } from '../platform/http/shapes.ts';
import { attemptsMax } from './retry-schedule.ts';
import { isWebhookSecret } from './signature.ts';
import {
  campaignEventChoices,
  eventPatterns,
  eventTypes,
  progressType,
  wantedPatterns,
} from './event-types.ts';

const patternsMax = 100;

/** Two pages of the longest rows are read at most. */
export const eventsOfPageMax = 200;

/** No longer than load balancers and proxies keep a request that says nothing. */
export const waitSecondsMax = 25;

/** What is replayed by one request at most. */
export const replayedMax = 10_000;

const patterns = Type.Array(literals(wantedPatterns, { title: 'WebhookEventPattern' }), {
  minItems: 1,
  maxItems: patternsMax,
  uniqueItems: true,
  description:
    'Types of events, `email.*` for all that happens to emails, or `*` for everything: each contact of an import among it.',
});

const eventType = literals(eventTypes, { title: 'WebhookEventType' });

const campaignEvents = (options: { description?: string } = {}) => literals(campaignEventChoices, options);

const ofCampaigns = `What to be told of the recipients of campaigns: of each of them, of what was counted of them every minute (\`${progressType}\`), or nothing.`;

export const eventFormats = ['full', 'thin'] as const;

export type EventFormat = (typeof eventFormats)[number];

const formatInput = literals(eventFormats, {
  description:
    '`full`: `data` of an event is what it happened to, as the API shows it. `thin`: it has `related_object` instead, which says where to read that.',
});

const urlText = (options: { description?: string } = {}) =>
  Type.String({ minLength: 1, maxLength: 2_048, sensitive: true, ...options });

const headersInput = Type.Record(Type.String({ maxLength: 100 }), Type.String({ maxLength: 1_000 }), {
  maxProperties: 5,
  sensitive: true,
  description: 'Sent with each request, such as a token for a gateway. They are not shown again.',
});

const concurrencyInput = Type.Integer({
  minimum: 1,
  maximum: 20,
  description: 'Requests at once. With 1, events arrive in their order, and wait for one that was not taken.',
});

const secretInput = optionalText({
  maxLength: 200,
  format: 'webhook-secret',
  sensitive: true,
  description: 'One of your own, `whsec_` and base64; otherwise one is made.',
});

export const webhookBody = Type.Object(
  {
    kind: literals(['url', 'poll'] as const, {
      description: '`url`: events are posted to it. `poll`: they are read from the log.',
    }),
    url: Type.Optional(urlText({ description: 'Where events are posted to, by HTTPS.' })),
    events: patterns,
    campaign_events: Type.Optional(campaignEvents({ description: `${ofCampaigns} \`none\` unless given.` })),
    format: Type.Optional(formatInput),
    description: optionalText({ maxLength: 255, minLength: 1 }),
    headers: Type.Optional(headersInput),
    concurrency: Type.Optional(concurrencyInput),
    secret: secretInput,
  },
  { title: 'CreateWebhookRequest', additionalProperties: false, rules: ['webhook-endpoint'] },
);

export type WebhookBody = Static<typeof webhookBody>;

export const webhookPatch = Type.Object(
  {
    url: Type.Optional(urlText()),
    events: Type.Optional(patterns),
    campaign_events: Type.Optional(campaignEvents({ description: ofCampaigns })),
    format: Type.Optional(formatInput),
    description: optionalText({ maxLength: 255, minLength: 1 }),
    headers: Type.Optional(headersInput),
    concurrency: Type.Optional(concurrencyInput),
  },
  { title: 'UpdateWebhookRequest', additionalProperties: false, rules: ['webhook-endpoint'] },
);

export type WebhookPatch = Static<typeof webhookPatch>;

export const webhookStatuses = ['enabled', 'failing', 'paused', 'disabled'] as const;

const lastFailure = Type.Object(
  { at: instant, status: Type.Union([Type.Integer(), Type.Null()]), message: Type.String() },
  { title: 'WebhookFailure' },
);

const instantOrNull = (description?: string) =>
  Type.Union([instant, Type.Null()], description === undefined ? {} : { description });

export const webhookRecord = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    kind: literals(['url', 'poll'] as const),
    url: textOrNull,
    status: literals(webhookStatuses, {
      description:
        '`failing`: the endpoint takes nothing at present; events wait, and one is tried now and then. `disabled`: it took nothing for five days, or answered 410; events wait in the log until it is enabled.',
    }),
    events: Type.Array(Type.String()),
    campaign_events: campaignEvents(),
    format: Type.Union([literals(eventFormats), Type.Null()], { description: 'Null where kind is poll.' }),
    description: textOrNull,
    header_names: Type.Array(Type.String()),
    concurrency: Type.Union([Type.Integer(), Type.Null()]),
    backlog: Type.Union([Type.Integer(), Type.Null()], {
      description: 'Positions of the log that the endpoint was not told of yet, wanted or not.',
    }),
    failing_since: instantOrNull(),
    next_attempt_at: instantOrNull('When it is tried again, while it fails.'),
    last_success_at: instantOrNull(),
    last_failure: Type.Union([lastFailure, Type.Null()]),
    created_at: instant,
    updated_at: instant,
  },
  { title: 'Webhook' },
);

const shownSecret = Type.Union([Type.String(), Type.Null()], {
  description:
    'It signs the events, by Standard Webhooks 1.0. It is not shown again. Null where kind is poll.',
});

export const createdWebhook = Type.Object(
  { ...webhookRecord.properties, secret: shownSecret },
  { title: 'CreatedWebhook' },
);

export const rotationBody = Type.Object(
  {
    secret: secretInput,
    expire_after_hours: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: 168,
        default: 24,
        description: 'For how long the secret that is replaced signs too.',
      }),
    ),
  },
  { title: 'RotateWebhookSecretRequest', additionalProperties: false },
);

export const rotatedSecret = Type.Object(
  { id: Type.String({ format: 'uuid' }), secret: Type.String(), previous_ends_at: instant },
  { title: 'RotatedWebhookSecret' },
);

export const enablingBody = Type.Object(
  {
    from: Type.Optional(
      literals(['where_it_stopped', 'now'] as const, {
        description: 'Whether it is told of what happened meanwhile. `where_it_stopped` unless given.',
      }),
    ),
  },
  { title: 'EnableWebhookRequest', additionalProperties: false },
);

export const testBody = Type.Object(
  { type: Type.Optional(eventType) },
  { title: 'TestWebhookRequest', additionalProperties: false },
);

const attemptFields = {
  status: Type.Union([Type.Integer(), Type.Null()], {
    description: 'The status of the answer; null where there was none.',
  }),
  ms: Type.Integer({ description: 'Until the head of the answer, or until it was given up.' }),
  message: Type.Union([Type.String(), Type.Null()], { description: 'Why it failed.' }),
  answer: Type.String({ description: 'The beginning of the answer, a kilobyte at most.' }),
};

export const testResult = Type.Object(
  { event_id: Type.String({ format: 'uuid' }), delivered: Type.Boolean(), ...attemptFields },
  { title: 'WebhookTest' },
);

export const deliveryStatuses = ['retrying', 'delivered', 'failed'] as const;

const deliveryFields = {
  id: Type.String({ format: 'uuid', description: 'That of the event.' }),
  type: Type.String(),
  sequence: Type.Integer(),
  status: literals(deliveryStatuses, {
    description: `\`failed\`: it was given up, after ${attemptsMax} attempts.`,
  }),
  attempts: Type.Integer(),
  next_attempt_at: instantOrNull(),
  updated_at: instant,
};

export const deliveryRecord = Type.Object(deliveryFields, { title: 'WebhookDelivery' });

export const deliveryWithAttempts = Type.Object(
  {
    ...deliveryFields,
    attempt_list: Type.Array(
      Type.Object({ at: instant, ...attemptFields }, { title: 'WebhookDeliveryAttempt' }),
    ),
  },
  { title: 'WebhookDeliveryWithAttempts' },
);

export const replayBody = Type.Object(
  {
    from: Type.Integer({ minimum: 1, maximum: 999_999_999_999_999, description: 'The first position.' }),
    to: Type.Optional(
      Type.Integer({ minimum: 1, maximum: 999_999_999_999_999, description: 'The last position.' }),
    ),
    only: Type.Optional(
      literals(['failed', 'all'] as const, {
        description: '`failed`: those that were given up. `all` unless given.',
      }),
    ),
  },
  { title: 'ReplayWebhookRequest', additionalProperties: false },
);

export const replayResult = Type.Object(
  {
    count: Type.Integer({ description: 'Events that are told again.' }),
    next: Type.Union([Type.Integer(), Type.Null()], {
      description: `The \`from\` of the next request: one replays ${replayedMax} positions at most. Null when all are.`,
    }),
  },
  { title: 'WebhookReplay' },
);

export const webhookEvent = Type.Object(
  {
    id: Type.String({
      format: 'uuid',
      description: 'The same however often the event is told: whoever has seen it may leave it out.',
    }),
    type: eventType,
    timestamp: Type.Unsafe<string>({ ...instant, description: 'When it happened.' }),
    sequence: Type.Integer({
      description:
        'Its position in the log of the organization. The positions have no gaps, and go up in the order in which events became known.',
    }),
    data: Type.Object(
      {},
      {
        additionalProperties: true,
        description:
          'What it happened to, as it is when the event is read; of what was deleted or erased by then, the `id`.',
      },
    ),
  },
  { title: 'WebhookEvent' },
);

export const eventPage = Type.Object(
  {
    object: Type.Literal('event_page'),
    data: Type.Array(webhookEvent),
    next: Type.Integer({ description: 'The `from` of the next page.' }),
    caught_up: Type.Boolean({ description: 'Whether there was nothing more at this moment.' }),
    oldest: Type.Union([Type.Integer(), Type.Null()], {
      description: 'The position from which on events are kept; null if there are none.',
    }),
  },
  { title: 'WebhookEventPage' },
);

export type WebhookEvent = Static<typeof webhookEvent>;

export type EventPage = Static<typeof eventPage>;

/** To be handed to `createValidation`. */
export const webhookFormats = {
  'webhook-secret': {
    test: isWebhookSecret,
    mustBe: 'whsec_ and 24 to 64 bytes in base64',
  },
  'log-position': {
    test: (text: string) => /^(?:\d{1,15}|now)$/.test(text),
    mustBe: 'a position, which is a number of at most 15 digits, or now',
  },
  'event-page-size': {
    test: (text: string) => isNumberFrom(1, eventsOfPageMax, text),
    mustBe: `a number from 1 to ${eventsOfPageMax}`,
  },
  'wait-seconds': {
    test: (text: string) => isNumberFrom(0, waitSecondsMax, text),
    mustBe: `a number of seconds from 0 to ${waitSecondsMax}`,
  },
  'event-patterns': {
    test: (text: string) => text.split(',').every((pattern) => eventPatterns.includes(pattern)),
    mustBe: 'types of events, or patterns such as email.*, with commas between them',
  },
};

function isNumberFrom(min: number, max: number, text: string): boolean {
  return /^\d{1,3}$/.test(text) && Number(text) >= min && Number(text) <= max;
}
