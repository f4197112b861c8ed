import { type Static, Type } from 'typebox';
import { channels } from '../channels/channel.ts';
import type { Schema } from '../platform/http/openapi.ts';
import { paginationParameters } from '../platform/http/pagination.ts';
import {
  instant,
  literals,
  optional,
  optionalText,
  textOrNull,
  itemError,
  itemIndex,
} from '../platform/http/shapes.ts';
import { suppressionReasons, suppressionScopes, suppressionSources } from './schema.ts';
import { addressedChannels } from './suppressed-address.ts';

const id = Type.String({ format: 'uuid' });

/** Longer ones are no address of any channel; the rule `suppression` says of which it must be one. */
export const addressLengthMax = 320;

const address = Type.String({
  minLength: 1,
  maxLength: addressLengthMax,
  sensitive: true,
  description: 'The email address, or the phone number in E.164.',
});

const channel = literals(addressedChannels, { title: 'AddressedChannel' });

/** Body of `POST /suppressions`, and each of the bulk. */
export const suppressionBody = Type.Object(
  {
    channel,
    address,
    reason: optional<'manual'>('string', {
      enum: ['manual', null],
      description: 'Always `manual`: the other reasons are found out, or said by people.',
    }),
    note: optionalText({
      maxLength: 255,
      sensitive: true,
      description: 'For people. It is erased with the address.',
    }),
    scope: optional<(typeof suppressionScopes)[number]>('string', {
      enum: [...suppressionScopes, null],
      description: 'Whether nothing is sent (`all`, the default), or no campaigns.',
    }),
    expires_at: optional<string>('string', {
      format: 'date-time',
      description: 'From when on the address can be written to again; never, if it is left out.',
    }),
  },
  { title: 'CreateSuppressionRequest', additionalProperties: false, rules: ['suppression'] },
);

export type SuppressionBody = Static<typeof suppressionBody>;

/** As many as a bulk may have, and a check or a deletion name. */
export const bulkMax = 1_000;

/**
 * Body of `POST /suppressions/bulk`. Each is checked by itself, so that one that is wrong does not refuse the others:
 * `describeSuppressions` says what it may be.
 */
export const suppressionsBody = Type.Object(
  {
    suppressions: Type.Array(Type.Unsafe<unknown>({ title: 'BulkSuppression' }), {
      minItems: 1,
      maxItems: bulkMax,
    }),
  },
  { title: 'CreateSuppressionsRequest', additionalProperties: false },
);

/** By title, what stands in the place of the schemas of those titles in the description of the API. */
export function describeSuppressions(): Record<'BulkSuppression', Schema> {
  const { type, required, properties } = suppressionBody;
  return {
    BulkSuppression: {
      type,
      required,
      properties,
      additionalProperties: false,
      description: 'What suppresses one address; its own result tells what is wrong with it.',
    },
  };
}

export const checkBody = Type.Object(
  { channel, addresses: Type.Array(address, { minItems: 1, maxItems: bulkMax }) },
  { title: 'CheckSuppressionsRequest', additionalProperties: false, rules: ['suppression-check'] },
);

export type CheckBody = Static<typeof checkBody>;

const confirm = {
  enum: ['complaint'],
  description:
    'Says that complaints are meant: whoever has reported mail as spam does so again, and providers count it.',
};

/** Query of `DELETE /suppressions/:id`. */
export const deletionQuery = Type.Object(
  { confirm: Type.Optional(Type.String(confirm)) },
  { additionalProperties: false },
);

export const bulkDeletionBody = Type.Object(
  {
    ids: Type.Array(id, { minItems: 1, maxItems: bulkMax }),
    confirm: Type.Optional(Type.String(confirm)),
  },
  { title: 'DeleteSuppressionsRequest', additionalProperties: false },
);

export const listQuery = Type.Object(
  {
    ...paginationParameters,
    channel: Type.Optional(literals(channels)),
    reason: Type.Optional(literals(suppressionReasons)),
    search: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: addressLengthMax,
        sensitive: true,
        description:
          'A whole address, which is found even if it was erased, or the beginning of one that was not.',
      }),
    ),
    created_after: Type.Optional(Type.String({ format: 'date-time' })),
  },
  { additionalProperties: false },
);

const recordFields = {
  id,
  channel: literals(channels),
  address: Type.Union([Type.String(), Type.Null()], {
    description: 'As it is compared. Null once it was erased: the suppression holds all the same.',
  }),
  reason: literals(suppressionReasons),
  scope: literals(suppressionScopes, {
    description: 'Whether nothing is sent to the address on the channel, or no campaigns.',
  }),
  note: textOrNull,
  source: Type.Object(
    {
      type: literals(suppressionSources),
      id: Type.Union([id, Type.Null()], {
        description: 'Of the message or the API key, if it is known which.',
      }),
    },
    { title: 'SuppressionSource' },
  ),
  created_at: instant,
  expires_at: Type.Union([instant, Type.Null()]),
};

export const suppressionRecord = Type.Object(recordFields, { title: 'Suppression' });

export type SuppressionRecord = Static<typeof suppressionRecord>;

/** What programs are told of a suppression (told-events.ts); of one that is made up for a test, `object` and `id` alone. */
export const toldSuppression = Type.Object(
  {
    object: Type.Literal('suppression'),
    ...Type.Partial(suppressionRecord).properties,
    id,
  },
  {
    title: 'WebhookEventSuppression',
    description: 'A suppression. Of one that is gone, `id`, `channel`, `reason` and `scope` are left.',
  },
);

export const bulkRecord = Type.Object(
  {
    data: Type.Array(
      Type.Union([
        Type.Object(
          {
            index: itemIndex,
            created: Type.Boolean({ description: 'False if it was there, and is as it was.' }),
            ...recordFields,
          },
          { title: 'BulkSuppressionResult' },
        ),
        Type.Object(
          { index: itemIndex, address: textOrNull, error: itemError },
          { title: 'BulkSuppressionRefusal' },
        ),
      ]),
    ),
  },
  { title: 'BulkSuppressions' },
);

export type BulkRecord = Static<typeof bulkRecord>;

export const suppressionsDeletion = Type.Object(
  {
    object: Type.Literal('bulk_delete'),
    deleted_count: Type.Integer(),
    not_found_ids: Type.Array(id),
    refused: Type.Array(Type.Object({ id, error: itemError }), {
      description: 'Those that cannot be deleted, each with the error that deleting it alone would have.',
    }),
  },
  { title: 'SuppressionsDeletion' },
);

export type SuppressionsDeletion = Static<typeof suppressionsDeletion>;

export const checkRecord = Type.Object(
  {
    data: Type.Array(
      Type.Object({
        address: Type.String({ description: 'As it was given.' }),
        suppressed: Type.Boolean({
          description: 'Whether anything suppresses it, be it for campaigns alone: `scope` says so.',
        }),
        suppressions: Type.Array(suppressionRecord),
      }),
    ),
  },
  { title: 'SuppressionCheck' },
);

export type CheckRecord = Static<typeof checkRecord>;
