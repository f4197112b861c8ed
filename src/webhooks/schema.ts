import { type Static, Type } from 'typebox';
import { instant, literals, optionalText, textOrNull } from '../platform/http/shapes.ts';
import { eventPatterns, eventTypes } from './event-types.ts';

export const patternsMax = 100;

/** Two pages of the longest rows are read at most. */
export const eventsOfPageMax = 200;

/** No longer than load balancers and proxies keep a request that says nothing. */
export const waitSecondsMax = 25;

const patterns = Type.Array(literals(eventPatterns, { title: 'WebhookEventPattern' }), {
  minItems: 1,
  maxItems: patternsMax,
  uniqueItems: true,
  description: 'Types of events, `email.*` for all that happens to emails, or `*` for everything.',
});

const campaignEvents = (options: { description?: string } = {}) =>
  literals(['none', 'all'] as const, options);

const description = 'Whether to be told of each recipient of campaigns.';

export const webhookBody = Type.Object(
  {
    kind: literals(['poll'] as const, { description: '`poll`: events are read from the log.' }),
    events: patterns,
    campaign_events: Type.Optional(campaignEvents({ description: `${description} \`none\` unless given.` })),
    description: optionalText({ maxLength: 255, minLength: 1 }),
  },
  { title: 'CreateWebhookRequest', additionalProperties: false },
);

export type WebhookBody = Static<typeof webhookBody>;

export const webhookPatch = Type.Object(
  {
    events: Type.Optional(patterns),
    campaign_events: Type.Optional(campaignEvents({ description })),
    description: optionalText({ maxLength: 255, minLength: 1 }),
  },
  { title: 'UpdateWebhookRequest', additionalProperties: false },
);

export type WebhookPatch = Static<typeof webhookPatch>;

export const webhookRecord = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    kind: literals(['poll'] as const),
    events: Type.Array(Type.String()),
    campaign_events: campaignEvents(),
    description: textOrNull,
    created_at: instant,
    updated_at: instant,
  },
  { title: 'Webhook' },
);

export const webhookEvent = Type.Object(
  {
    id: Type.String({
      format: 'uuid',
      description: 'The same however often the event is told: whoever has seen it may leave it out.',
    }),
    type: literals(eventTypes, { title: 'WebhookEventType' }),
    timestamp: Type.Unsafe<string>({ ...instant, description: 'When it happened.' }),
    sequence: Type.Integer({
      description:
        'Its position in the log of the organization. The positions have no gaps, and go up in the order in which events became known.',
    }),
    data: Type.Object(
      {},
      { additionalProperties: true, description: 'What it happened to, as it is when the event is read.' },
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
  'log-position': {
    test: (text: string) => /^\d{1,15}$/.test(text),
    mustBe: 'a position: a number of at most 15 digits',
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
