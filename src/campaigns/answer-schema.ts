import { type TObject, type TSchema, Type } from 'typebox';
import { campaignDropReasons, campaignRecipientStatuses, fateFields } from '../messages/messages.ts';
import { paginationParameters } from '../platform/http/pagination.ts';
import { instant, literals } from '../platform/http/shapes.ts';
import type { CampaignChannel } from './channel.ts';
import { outcomes } from './explanation.ts';
import { exclusions } from './schema.ts';

const id = Type.String({ format: 'uuid' });

const nullable = (schema: TSchema, description?: string) =>
  Type.Union([schema, Type.Null()], description === undefined ? {} : { description });

const recipientStatus = literals(campaignRecipientStatuses, { title: 'CampaignRecipientStatus' });

/** Query of `GET /<channel>/campaigns/:id/recipients`. */
export const recipientQuery = Type.Object(
  { ...paginationParameters, status: Type.Optional(recipientStatus) },
  { additionalProperties: false },
);

function addressField({ addressColumns }: CampaignChannel) {
  return {
    [addressColumns.address]: nullable(Type.String(), 'Null once it was erased together with its contact.'),
  };
}

export function recipientRecord(channel: CampaignChannel): TObject {
  return Type.Object(
    {
      contact_id: id,
      ...addressField(channel),
      status: recipientStatus,
      status_at: nullable(instant),
      dropped: Type.Boolean({ description: 'Not written to, although it was in the audience.' }),
      drop_reason: nullable(literals(campaignDropReasons, { title: 'CampaignDropReason' })),
      ...fateFields,
    },
    { title: `${channel.noun}Recipient` },
  );
}

export const recipientParameters = Type.Object({ id, contact_id: id });

export function explanationRecord(channel: CampaignChannel): TObject {
  return Type.Object(
    {
      contact_id: id,
      ...addressField(channel),
      outcome: literals(outcomes, { title: 'CampaignOutcome' }),
      reason: Type.String({ description: 'In a sentence or two.' }),
      steps: Type.Array(
        Type.Object({ at: nullable(instant), text: Type.String() }, { title: 'CampaignExplanationStep' }),
        { description: 'What it came about by, as far as it is known, in its order.' },
      ),
    },
    { title: `${channel.noun}Explanation` },
  );
}

const contactId = Type.Optional(
  Type.String({
    format: 'uuid',
    description: 'Whose values to take; those of the first of the audience otherwise.',
  }),
);

/** Body of `POST /<channel>/campaigns/:id/preview`. */
export const previewBody = Type.Object(
  { contact_id: contactId },
  { title: 'PreviewCampaignRequest', additionalProperties: false },
);

export function previewRecord({ noun, sampleRecord }: CampaignChannel): TObject {
  return Type.Object(
    {
      ready: Type.Boolean({ description: 'It has all that it needs to be sent.' }),
      issues: Type.Array(Type.String(), { description: 'What it still needs.' }),
      audience: Type.Integer({ description: 'How many would get it now.' }),
      excluded: exclusions,
      candidates: Type.Integer({ description: 'Those and the audience.' }),
      missing_variables: nullable(
        Type.Array(
          Type.Object({ name: Type.String(), contacts: Type.Integer() }, { title: 'MissingVariable' }),
        ),
        'Placeholders that stay as written for some: they have no value, and the campaign has none for them. Null if the campaign is not ready, or they could not be counted in ten seconds.',
      ),
      sample_contact_id: nullable(id, 'Whose values are shown.'),
      ...sampleRecord,
      warnings: Type.Array(Type.String(), {
        description: 'What may be a mistake; it does not keep from sending.',
      }),
    },
    { title: `${noun}Preview` },
  );
}

const testAddressesMax = 10;

/** Body of `POST /<channel>/campaigns/:id/test`. */
export function testBody({ noun, addressFormat }: CampaignChannel) {
  return Type.Object(
    {
      to: Type.Array(Type.String({ format: addressFormat }), {
        minItems: 1,
        maxItems: testAddressesMax,
        description: 'Each gets a message of its own.',
      }),
      contact_id: contactId,
    },
    { title: `Test${noun}Request`, additionalProperties: false },
  );
}

export const testRecord = Type.Object(
  {
    ids: Type.Array(id, { description: 'Of the messages, in the order of `to`.' }),
  },
  { title: 'MessageReferences' },
);
