import { type Static, Type } from 'typebox';
import { contactReferenceFields } from '../audience/audience.ts';
import type { Schema } from '../platform/http/openapi.ts';
import {
  instant,
  literals,
  optionalText,
  textOrNull,
  itemError,
  itemIndex,
} from '../platform/http/shapes.ts';

export const fieldTypes = ['string', 'number', 'integer', 'boolean', 'date'] as const;

export type FieldType = (typeof fieldTypes)[number];

/** More would be a document, of which conditions can ask nothing. */
const fieldsMax = 50;
/** ISO 4217 has fewer than two hundred in use. */
const currenciesMax = 200;

const id = Type.String({ format: 'uuid' });

const fieldName = Type.String({ maxLength: 50, pattern: '^[a-z][a-z0-9_]{0,49}$' });

const fieldType = literals(fieldTypes, { title: 'EventFieldType' });

const schemaInput = Type.Object(
  {
    fields: Type.Array(
      Type.Object(
        {
          name: fieldName,
          type: fieldType,
          required: Type.Optional(
            Type.Boolean({ description: 'Whether each event must have it; `false` by default.' }),
          ),
        },
        { title: 'EventFieldInput', additionalProperties: false },
      ),
      { maxItems: fieldsMax },
    ),
  },
  {
    title: 'EventSchemaInput',
    additionalProperties: false,
    rules: ['event-fields'],
    description: 'The fields of the payload that conditions can ask about. Others are stored as well.',
  },
);

const fieldOrNull = (description: string) => optionalText({ minLength: 1, maxLength: 50, description });

const conversionInput = Type.Object(
  {
    enabled: Type.Optional(
      Type.Boolean({
        description: 'Whether these events are credited to the message that the contact clicked last.',
      }),
    ),
    value_field: fieldOrNull('The numeric field that says what a conversion is worth.'),
    currency_field: fieldOrNull('The string field that says in which currency.'),
    currencies: Type.Optional(
      Type.Unsafe<string[] | null>({
        type: ['array', 'null'],
        items: { type: 'string', maxLength: 16 },
        maxItems: currenciesMax,
        description: 'The currencies of ISO 4217 that events may have; any if it is left out.',
      }),
    ),
  },
  {
    title: 'EventConversionInput',
    additionalProperties: false,
    description: 'What is left out stays as it is; at first it is off.',
  },
);

const description = optionalText({ maxLength: 1_000 });

export const definitionBody = Type.Object(
  {
    name: Type.String({
      maxLength: 100,
      pattern: '^[A-Za-z][A-Za-z0-9_.:-]*$',
      description: 'By which events are sent, such as `order.completed`; unique, and never changes.',
    }),
    description,
    schema: Type.Optional(schemaInput),
    conversion: Type.Optional(conversionInput),
  },
  { title: 'CreateEventRequest', additionalProperties: false },
);

export type DefinitionBody = Static<typeof definitionBody>;

export const definitionPatch = Type.Object(
  { description, schema: Type.Optional(schemaInput), conversion: Type.Optional(conversionInput) },
  { title: 'UpdateEventRequest', additionalProperties: false },
);

export type DefinitionPatch = Static<typeof definitionPatch>;

const eventSchema = Type.Object(
  {
    fields: Type.Array(
      Type.Object(
        { name: Type.String(), type: fieldType, required: Type.Boolean() },
        { title: 'EventField' },
      ),
    ),
  },
  { title: 'EventSchema' },
);

export type EventSchema = Static<typeof eventSchema>;

const conversion = Type.Object(
  {
    enabled: Type.Boolean(),
    value_field: textOrNull,
    currency_field: textOrNull,
    currencies: Type.Union([Type.Array(Type.String()), Type.Null()]),
  },
  { title: 'EventConversion' },
);

export type Conversion = Static<typeof conversion>;

export const definitionRecord = Type.Object(
  {
    id,
    name: Type.String(),
    description: textOrNull,
    schema: eventSchema,
    conversion,
    created_at: instant,
    updated_at: instant,
  },
  { title: 'Event' },
);

export type DefinitionRecord = Static<typeof definitionRecord>;

/** An order with a hundred positions has some 20 kB. */
export const payloadBytesMax = 32_768;

/** Two systems rarely agree on the time by more; and conditions look back from the present. */
export const aheadMsMax = 5 * 60_000;
/** Conversions and conditions that were looked at already are not looked at again for what is older. */
export const backMsMax = 30 * 86_400_000;

export type Payload = Readonly<Record<string, unknown>>;

const anyFields = { type: 'object', additionalProperties: true };

const payload = Type.Unsafe<Payload>({
  title: 'EventPayload',
  type: 'object',
  // Those are composed that conditions can ask about, now or when they are declared.
  additionalProperties: { composed: true },
  description:
    'The fields of the event: those that it declares, and any others. At most 32 kB as JSON, and no number ' +
    'from 1e30 up or closer to 0 than 1e-20. ' +
    'Dates of declared fields are stored in UTC.',
});

/** Body of `POST /events/send`, and one of the events of a batch. */
export const eventBody = Type.Object(
  {
    event: Type.String({ minLength: 1, maxLength: 100, description: 'The name of the event.' }),
    ...contactReferenceFields,
    payload: Type.Optional(payload),
    occurred_at: Type.Optional(
      Type.String({
        format: 'date-time',
        description: 'At most thirty days ago and five minutes ahead; the time of arrival by default.',
      }),
    ),
  },
  { title: 'SendEventRequest', additionalProperties: false, rules: ['event-payload', 'event-time'] },
);

export type EventBody = Static<typeof eventBody>;

/** As many as fit into a request of some megabytes, and into a transaction of some ten milliseconds. */
export const batchMax = 500;

export const batchBody = Type.Object(
  {
    events: Type.Array(Type.Unsafe<unknown>({ title: 'BatchEvent' }), {
      minItems: 1,
      maxItems: batchMax,
      description: 'Carried out in this order.',
    }),
  },
  { title: 'SendEventBatchRequest', additionalProperties: false },
);

/** By title, what stands in the place of the schemas of those titles in the description of the API. */
export function describeBatchEvents(): Record<'BatchEvent', Schema> {
  const { type, required, properties } = eventBody;
  return {
    BatchEvent: {
      type,
      required,
      properties,
      additionalProperties: false,
      description: 'One event; its own result tells what is wrong with it.',
    },
  };
}

export const batchRecord = Type.Object(
  {
    data: Type.Array(
      Type.Union([
        Type.Object({ index: itemIndex, id }, { title: 'AcceptedBatchEvent' }),
        Type.Object(
          {
            index: itemIndex,
            error: itemError,
          },
          { title: 'RefusedBatchEvent' },
        ),
      ]),
    ),
  },
  { title: 'EventBatch' },
);

export type BatchRecord = Static<typeof batchRecord>;

/** An event of a contact, as its timeline shows it. */
export const occurrenceRecord = Type.Object(
  {
    id,
    event: Type.String({ description: 'The name of the event, which may have been deleted since.' }),
    payload: Type.Unsafe<Payload>(anyFields),
    occurred_at: instant,
    received_at: instant,
  },
  { title: 'ContactEvent' },
);

export type OccurrenceRecord = Static<typeof occurrenceRecord>;
