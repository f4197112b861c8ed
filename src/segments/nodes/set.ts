import type { SetKind } from '../../audience/audience.ts';
import { negate, type Predicate, toPredicate } from '../../platform/postgres/predicate.ts';
import type { LeafType } from '../leaf.ts';
import {
  addUnknown,
  itemsSchema,
  type Place,
  readItems,
  readOneOf,
  readUuid,
  type Reading,
  refuseOtherMembers,
  takeMember,
  uuidSchema,
} from '../reading.ts';

/** More of them are a list, and belong into one. */
const idsMax = 100;

const operators = ['in', 'not_in'] as const;

const titles: Readonly<Record<SetKind, string>> = {
  list: 'ListCondition',
  tag: 'TagCondition',
  segment: 'SegmentCondition',
};

/** Whether a contact belongs to any of these sets. */
export function setCondition(kind: SetKind): LeafType {
  const readSetId = (reading: Reading, place: Place) => {
    const id = readUuid(reading, place);
    if (id === null) return null;
    return reading.findSetKind(id) === kind
      ? id
      : addUnknown(reading, `${place.path} is not a known ${kind}`);
  };
  return {
    description: `Whether the contact is in any of these ${kind}s (\`in\`), or in none (\`not_in\`).`,
    title: titles[kind],
    forms: [
      { fields: { operator: { type: 'string', enum: operators }, ids: itemsSchema(uuidSchema, idsMax) } },
    ],
    example: { type: kind, operator: 'in', ids: ['0198c0de-0000-7000-8000-000000000001'] },
    read: (reading, members) => {
      refuseOtherMembers(reading, members, ['type', 'operator', 'ids']);
      const [operatorPlace, idsPlace] = [
        takeMember(reading, members, 'operator'),
        takeMember(reading, members, 'ids'),
      ];
      const operator = operatorPlace && readOneOf(reading, operatorPlace, operators);
      const ids = idsPlace && readItems(reading, idsPlace, idsMax, readSetId);
      if (operator === null || ids === null) return null;
      return {
        compile: ({ bind }) => {
          const isMember = isMemberOfAny(bind(ids));
          return operator === 'in' ? isMember : negate(isMember);
        },
        references: ids.map((id) => ({ kind, id })),
        isTimeBound: false,
        readsMessages: false,
      };
    },
  };
}

/** By the primary key of memberships, or for single contacts by memberships_contact. */
function isMemberOfAny(ids: string): Predicate {
  return toPredicate(`exists (
      select
      from memberships membership
      where membership.organization_id = contact.organization_id
        and membership.set_id = any (${ids}::uuid[])
        and membership.contact_id = contact.id
    )`);
}
