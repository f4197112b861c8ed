import { type Static, type TObject, type TProperties, type TSchema, Type } from 'typebox';
import { sendingChannels } from '../channels/channel.ts';
import { currencySum } from '../events/events.ts';
import { paginationParameters } from '../platform/http/pagination.ts';
import { instant, literals, nameText, referenceOf } from '../platform/http/shapes.ts';
import { type AudienceField, audienceFields, audienceKinds } from './audience-fields.ts';
import type { CampaignChannel } from './channel.ts';
import { campaignStatuses, pauseReasons } from './states.ts';

const name = nameText(255);

const idsMax = 100;

const describedAs: Readonly<Record<AudienceField, string>> = {
  list_ids: 'Lists whose contacts get it.',
  tag_ids: 'Tags whose contacts get it.',
  segment_ids: 'Segments whose contacts get it.',
  exclude_list_ids: 'Lists whose contacts do not get it.',
  exclude_tag_ids: 'Tags whose contacts do not get it.',
  exclude_segment_ids: 'Segments whose contacts do not get it.',
};

const audienceInputs = Object.fromEntries(
  audienceFields.map((field) => [
    field,
    Type.Optional(
      Type.Unsafe<string[] | null>({
        type: ['array', 'null'],
        maxItems: idsMax,
        items: { type: 'string', format: 'uuid' },
        description: describedAs[field],
      }),
    ),
  ]),
);

/** The inputs of a client: the name, the audience, and the channel's fields. Null removes an input. */
export type CampaignInput = { name?: string } & Partial<Record<AudienceField, string[] | null>> &
  Record<string, unknown>;

/** Body of `POST /<channel>/campaigns`. */
export function campaignBody({ noun, contentFields, rules }: CampaignChannel): TObject {
  return Type.Object(
    { name, ...audienceInputs, ...contentFields },
    { title: `Create${noun}Request`, additionalProperties: false, rules },
  );
}

/** Body of `PATCH /<channel>/campaigns/:id`. */
export function campaignPatch({ noun, contentFields, rules }: CampaignChannel): TObject {
  return Type.Object(
    { name: Type.Optional(name), ...audienceInputs, ...contentFields },
    { title: `Update${noun}Request`, additionalProperties: false, rules },
  );
}

/** Body of `POST /<channel>/campaigns/:id/send`. lifecycle.ts checks the time. */
export const sendBody = Type.Object(
  {
    scheduled_at: Type.Optional(
      Type.String({
        // At once, which null would be too, is nothing that an empty field of a form should do.
        nullIsRefused: true,
        description:
          'When to send it, in ISO 8601 with an offset: in the future, and at most a year ahead. At once when omitted.',
      }),
    ),
  },
  { title: 'SendCampaignRequest', additionalProperties: false },
);

const campaignStatus = literals(campaignStatuses, { title: 'CampaignStatus' });

/** Query of `GET /<channel>/campaigns`. */
export const campaignQuery = Type.Object(
  {
    ...paginationParameters,
    search: Type.Optional(
      Type.String({ minLength: 1, maxLength: 255, description: 'Part of the name, ignoring case.' }),
    ),
    status: Type.Optional(campaignStatus),
  },
  { additionalProperties: false },
);

/** The response of create, update, send, cancel and resume. */
export const campaignReference = referenceOf('CampaignReference');

const count = (description: string) => Type.Integer({ description });

/** How many contacts are left out of an audience, each counted under the first reason that applies. */
export const exclusions = Type.Object(
  {
    unsubscribed: Type.Integer(),
    suppressed: Type.Integer(),
    no_address: Type.Integer(),
    duplicate: count('With the same address as another contact of the audience.'),
  },
  { title: 'CampaignExclusions' },
);

const stats = Type.Object(
  {
    audience: count('The number of contacts it is for, without the excluded ones.'),
    excluded: exclusions,
    pending: count('Without a final outcome yet.'),
    sent: count('Handed off to the provider.'),
    delivered: Type.Integer(),
    bounced: Type.Integer(),
    complained: Type.Integer(),
    failed: Type.Integer(),
    opened: Type.Integer(),
    clicked: Type.Integer(),
    unsubscribed: Type.Integer(),
    dropped: count(
      'Not sent to, because they were unsubscribed, suppressed or deleted after the audience was frozen.',
    ),
    uncertain: count(
      'The hand-off was cut off before the response, so it may have arrived. It is not repeated, or the repetition is still to come or was cut off too.',
    ),
    unconfirmed: count('Texts and pushes that were handed off, and of which nothing was reported since.'),
    cancelled: count('Not handed off when the campaign was cancelled.'),
    conversions: count('Events that were credited to it, after the contact had clicked.'),
    conversion_value: Type.Array(currencySum, { description: 'What these were worth, by currency.' }),
  },
  {
    title: 'CampaignStats',
    description:
      'The audience is counted while the campaign is `queued`, and does not change afterwards. The first thousand contacts of a large audience are written to while the others are still being counted.',
  },
);

export type CampaignStats = Static<typeof stats>;

const nullable = (schema: TSchema, description?: string) =>
  Type.Union([schema, Type.Null()], description === undefined ? {} : { description });

const pauseReason = nullable(
  literals(pauseReasons, {
    title: 'CampaignPauseReason',
  }),
  'A campaign that missed its schedule waits for `resume`; others continue automatically.',
);

/** The channel's inputs come between the campaign's name and its results. */
function recordOf(title: string, contentRecord: TProperties): TObject {
  return Type.Object(
    {
      id: Type.String({ format: 'uuid' }),
      name: Type.String(),
      status: campaignStatus,
      ...contentRecord,
      ...Object.fromEntries(
        audienceFields.map((field) => [
          field,
          Type.Array(Type.String({ format: 'uuid' }), { description: `Ids of ${audienceKinds[field]}s.` }),
        ]),
      ),
      scheduled_at: nullable(instant),
      queued_at: nullable(instant),
      started_at: nullable(instant, 'When the first copy was handed off.'),
      completed_at: nullable(instant),
      cancelled_at: nullable(instant),
      pause_reason: pauseReason,
      failure_reason: nullable(Type.String()),
      created_at: instant,
      updated_at: instant,
      stats,
    },
    { title },
  );
}

export function campaignRecord({ noun, contentRecord }: CampaignChannel): TObject {
  return recordOf(noun, contentRecord);
}

/** A campaign in a list: without its bodies. */
export function listedCampaignRecord({ noun, contentRecord, bodyFields }: CampaignChannel): TObject {
  return recordOf(
    `Listed${noun}`,
    Object.fromEntries(Object.entries(contentRecord).filter(([field]) => !bodyFields.includes(field))),
  );
}

/** What programs are told of a campaign of any channel (told-events.ts), beside the fields of its channel alone. */
export const toldCampaign = Type.Object(
  {
    object: Type.Literal('campaign'),
    id: Type.String({ format: 'uuid' }),
    channel: Type.Optional(literals(sendingChannels)),
    name: Type.Optional(Type.String()),
    status: Type.Optional(campaignStatus),
    pause_reason: Type.Optional(pauseReason),
    stats: Type.Optional(stats),
  },
  {
    title: 'WebhookEventCampaign',
    additionalProperties: true,
    description:
      'A campaign as lists of its channel have it. Of a campaign that is gone, `object` and `id` are left.',
  },
);
