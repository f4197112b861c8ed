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

function addressField(column: string) {
  return { [column]: nullable(Type.String(), 'Null after it was erased together with its contact.') };
}

const outcomeFields = {
  status: recipientStatus,
  status_at: nullable(instant),
  dropped: Type.Boolean({ description: 'In the audience, but not written to.' }),
  drop_reason: nullable(literals(campaignDropReasons, { title: 'CampaignDropReason' })),
  ...fateFields,
};

export function recipientRecord({ noun, reach }: CampaignChannel): TObject {
  const title = `${noun}Recipient`;
  if (reach.kind === 'address')
    return Type.Object(
      { contact_id: id, ...addressField(reach.columns.address), ...outcomeFields },
      { title },
    );
  const device = Type.Object(
    { device_id: id, ...outcomeFields, ...reach.record },
    { title: `${noun}Device` },
  );
  return Type.Object(
    {
      contact_id: id,
      devices: Type.Array(device, {
        description: 'Those of the contact that it was for; by a status, those that have it.',
      }),
    },
    { title },
  );
}

export const recipientParameters = Type.Object({ id, contact_id: id });

const explanationFields = {
  outcome: literals(outcomes, { title: 'CampaignOutcome' }),
  reason: Type.String({ description: 'The explanation, in one or two sentences.' }),
  steps: Type.Array(
    Type.Object({ at: nullable(instant), text: Type.String() }, { title: 'CampaignExplanationStep' }),
    { description: 'The known events that led to the outcome, in order.' },
  ),
};

export function explanationRecord({ noun, reach }: CampaignChannel): TObject {
  const title = `${noun}Explanation`;
  if (reach.kind === 'address')
    return Type.Object(
      { contact_id: id, ...addressField(reach.columns.address), ...explanationFields },
      { title },
    );
  const device = Type.Object({ device_id: id, ...explanationFields }, { title: `${noun}DeviceExplanation` });
  return Type.Object(
    {
      contact_id: id,
      ...explanationFields,
      devices: Type.Array(device, {
        description:
          'Each device that it was for. The explanation of the contact is that of the one where it got furthest.',
      }),
    },
    { title },
  );
}

const contactId = Type.Optional(
  Type.String({
    format: 'uuid',
    description: 'The contact whose values to use; the first one of the audience when omitted.',
  }),
);

/** Body of `POST /<channel>/campaigns/:id/preview`. */
export const previewBody = Type.Object(
  { contact_id: contactId },
  { title: 'PreviewCampaignRequest', additionalProperties: false },
);

const estimatedDays = nullable(
  Type.Integer(),
  'About how many days it will take, if it is sent now: how many people may be written to in a day is limited. Null where it is not, or where nobody has told how many.',
);

export function previewRecord({ noun, sampleRecord, needsAllValues, foresee }: CampaignChannel): TObject {
  return Type.Object(
    {
      ready: Type.Boolean({ description: 'Whether it can be sent as it is.' }),
      issues: Type.Array(Type.String(), { description: 'What is missing to send it.' }),
      audience: Type.Integer({ description: 'The number of contacts that would get it now.' }),
      excluded: exclusions,
      candidates: Type.Integer({ description: 'The audience and the excluded contacts together.' }),
      missing_variables: nullable(
        Type.Array(
          Type.Object({ name: Type.String(), contacts: Type.Integer() }, { title: 'MissingVariable' }),
        ),
        `Placeholders for which some contacts have no value, and the campaign has none either: ${needsAllValues === true ? 'those contacts get nothing' : 'they would be left as written'}. Null if the campaign is not ready, or they could not be counted in ten seconds.`,
      ),
      ...(foresee !== undefined && { estimated_days: estimatedDays }),
      sample_contact_id: nullable(id, 'The contact whose values are shown.'),
      ...sampleRecord,
      warnings: Type.Array(Type.String(), {
        description: 'Possible mistakes; they do not prevent sending.',
      }),
    },
    { title: `${noun}Preview` },
  );
}

const testAddressesMax = 10;

/** Body of `POST /<channel>/campaigns/:id/test`. */
export function testBody({ noun, addressFormat, testedAddress }: CampaignChannel) {
  return Type.Object(
    {
      to: Type.Array(Type.String({ format: addressFormat }), {
        minItems: 1,
        maxItems: testAddressesMax,
        description: testedAddress,
      }),
      contact_id: contactId,
    },
    { title: `Test${noun}Request`, additionalProperties: false },
  );
}

export const testRecord = Type.Object(
  {
    ids: Type.Array(id, { description: 'The ids of the messages, in the order of `to`.' }),
  },
  { title: 'MessageReferences' },
);
