import {
  contactAddresses,
  type ContactField,
  contactFieldNames,
  contactFields,
  type ContactFormat,
} from '../../audience/audience.ts';
import { foldAddress, parseDomain } from '../../channels/email/email.ts';
import { toComposed } from '../../platform/characters.ts';
import type { LeafType } from '../leaf.ts';
import { instantType } from '../operators/date.ts';
import { comparisonFields, groupOperators, readComparison, type ValueType } from '../operators/operator.ts';
import { textType } from '../operators/text.ts';
import { readOneOf, refuseOtherMembers, takeMember } from '../reading.ts';

const plainText = textType((text) => text);
const composedText = textType(toComposed);

/** How the values of a field are compared. */
const typesByFormat: Readonly<Record<ContactFormat, ValueType>> = {
  'single-line': plainText,
  'idn-email': textType(toEmailKey),
  'phone-number': plainText,
  locale: plainText,
  timezone: plainText,
};

/** Addresses stand first. */
const textNames = [...new Set([...contactAddresses, ...contactFieldNames])];
const instantNames = ['created_at'] as const;
const names = [...textNames, ...instantNames];

function describeField(name: ContactField | 'created_at'): { column: string; type: ValueType } {
  if (name === 'created_at') return { column: 'contact.created_at', type: instantType };
  const { key, schema } = contactFields[name];
  const type = 'composed' in schema ? composedText : typesByFormat[schema.format];
  return { column: `contact.${key}`, type };
}

/** A field that every contact may have. */
export const fieldCondition: LeafType = {
  description: 'A standard field of contacts. Case-sensitive, except for email addresses.',
  title: 'FieldCondition',
  forms: [textNames, instantNames].flatMap((ofType) =>
    groupOperators(ofType.map((name) => describeField(name).type)).map((group) => ({
      fields: { field: { type: 'string', enum: ofType }, ...comparisonFields(group) },
    })),
  ),
  example: { type: 'field', field: 'email', operator: 'ends_with', value: '@example.com' },
  read: (reading, members) => {
    const place = takeMember(reading, members, 'field');
    const name = place === null ? null : readOneOf(reading, place, names);
    if (name === null) {
      refuseOtherMembers(reading, members, ['type', 'field', 'operator', 'value']);
      return null;
    }
    const { column, type } = describeField(name);
    const comparison = readComparison(reading, members, type, ['type', 'field']);
    if (comparison === null) return null;
    return {
      compile: (compiler) => comparison.compile(column, compiler),
      references: [],
      isTimeBound: comparison.isTimeBound,
      readsMessages: false,
    };
  },
};

/**
 * As addresses are kept for comparison: folded, the domain as A-labels. The operand may be a part of an address
 * only, and is then left as it is where it is no domain.
 */
function toEmailKey(text: string): string {
  const folded = foldAddress(text);
  const domainAt = folded.lastIndexOf('@') + 1;
  if (domainAt === 0) return folded;
  return folded.slice(0, domainAt) + (parseDomain(folded.slice(domainAt)) ?? folded.slice(domainAt));
}
