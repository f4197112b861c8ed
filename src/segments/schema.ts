import { type Static, Type } from 'typebox';
import { contactRecord, toldMember } from '../audience/audience.ts';
import { paginationFields } from '../platform/http/pagination.ts';
import { instant, literals, nameText, textOrNull } from '../platform/http/shapes.ts';
import { conditionsSchema, explainedConditionsSchema } from './condition-schema.ts';

export const segmentStatuses = ['computing', 'ready', 'failed'] as const;

export type SegmentStatus = (typeof segmentStatuses)[number];

const name = nameText(255);

const description = Type.Optional(Type.Unsafe<string | null>({ type: ['string', 'null'], maxLength: 1_000 }));

/** Body of `POST /segments`. What conditions hold is checked in conditions.ts. */
export const segmentBody = Type.Object(
  { name, description, conditions: conditionsSchema },
  { title: 'CreateSegmentRequest', additionalProperties: false, rules: ['segment-conditions'] },
);

export type SegmentBody = Static<typeof segmentBody>;

/** Body of `PATCH /segments/:id`. */
export const segmentPatch = Type.Object(
  { name: Type.Optional(name), description, conditions: Type.Optional(conditionsSchema) },
  { title: 'UpdateSegmentRequest', additionalProperties: false, rules: ['segment-conditions'] },
);

export type SegmentPatch = Static<typeof segmentPatch>;

/** Body of `POST /segments/preview`. */
export const previewBody = Type.Object(
  { conditions: conditionsSchema },
  { title: 'PreviewSegmentRequest', additionalProperties: false, rules: ['segment-conditions'] },
);

/** Body of `POST /contacts/search`. */
export const searchBody = Type.Object(
  { conditions: conditionsSchema, ...paginationFields },
  { title: 'SearchContactsRequest', additionalProperties: false, rules: ['segment-conditions'] },
);

/** What `POST /segments/preview` answers. */
export const previewRecord = Type.Object(
  {
    contact_count: Type.Integer(),
    sample: Type.Array(contactRecord, { description: 'The newest of them, ten at most.' }),
  },
  { title: 'SegmentPreview' },
);

const id = Type.String({ format: 'uuid' });

export const segmentRecord = Type.Object(
  {
    id,
    name: Type.String(),
    description: textOrNull,
    conditions: conditionsSchema,
    status: literals(segmentStatuses, { title: 'SegmentStatus' }),
    contact_count: Type.Integer({
      description: 'The number of its contacts, as far as they have been computed.',
    }),
    computed_at: Type.Union([instant, Type.Null()], {
      description:
        'When all contacts were last checked. After that, each contact is checked when it changes.',
    }),
    created_at: instant,
    updated_at: instant,
  },
  { title: 'Segment' },
);

export type SegmentRecord = Static<typeof segmentRecord>;

/** What programs are told of somebody who entered or left a segment (told-events.ts); in a test, `object` and `id` alone. */
export const toldSegment = Type.Object(
  {
    object: Type.Literal('segment'),
    id,
    name: Type.Optional(
      Type.Union([Type.String(), Type.Null()], { description: 'Null if the segment was deleted.' }),
    ),
    contact: Type.Optional(toldMember),
  },
  { title: 'WebhookEventSegment' },
);

export const explanationRecord = Type.Object(
  {
    segment_id: id,
    contact_id: id,
    is_member: Type.Boolean({ description: 'Whether the contact is in the segment now.' }),
    holds: Type.Boolean({ description: 'Whether the conditions hold for the contact now.' }),
    conditions: explainedConditionsSchema,
  },
  { title: 'SegmentExplanation' },
);
