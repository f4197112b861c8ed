import type { PropertyType } from '../../audience/audience.ts';
import { toComposed } from '../../platform/characters.ts';
import type { LeafType } from '../leaf.ts';
import { booleanType } from '../operators/boolean.ts';
import { dateType } from '../operators/date.ts';
import { numberType } from '../operators/number.ts';
import {
  comparisonFields,
  groupOperators,
  operatorsOf,
  readComparison,
  type ValueType,
} from '../operators/operator.ts';
import { textType } from '../operators/text.ts';
import {
  addUnknown,
  type ConditionProperty,
  type Place,
  readText,
  type Reading,
  refuseOtherMembers,
  takeMember,
  textSchema,
} from '../reading.ts';

/**
 * Each type's operators, and how its values come out of the text that JSON holds for them. A property keeps its type,
 * and its number is never reused, so every value stored under it has that type and can be cast.
 */
const types: Readonly<Record<PropertyType, { type: ValueType; toSqlValue: (text: string) => string }>> = {
  string: { type: textType(toComposed), toSqlValue: (text) => text },
  number: { type: numberType, toSqlValue: (text) => `${text}::numeric` },
  boolean: { type: booleanType, toSqlValue: (text) => `${text}::boolean` },
  date: { type: dateType, toSqlValue: (text) => `${text} collate "C"` },
};

/** A property that the organization defined. */
export const propertyCondition: LeafType = {
  description:
    'A property that you defined, by its `key`. Its type decides which operators can be used: ' +
    `${Object.entries(types)
      .map(([name, { type }]) => `${name}: ${operatorsOf(type).join(', ')}`)
      .join('; ')}.`,
  title: 'PropertyCondition',
  forms: groupOperators(Object.values(types).map(({ type }) => type)).map((group) => ({
    fields: { key: textSchema, ...comparisonFields(group) },
  })),
  example: { type: 'property', key: 'plan', operator: 'in', value: ['pro', 'team'] },
  read: (reading, members) => {
    const place = takeMember(reading, members, 'key');
    const property = place === null ? null : readProperty(reading, place);
    if (property === null) {
      // The allowed fields depend on the type of the property.
      refuseOtherMembers(reading, members, ['type', 'key', 'operator', 'value']);
      return null;
    }
    const { type, toSqlValue } = types[property.type];
    const comparison = readComparison(reading, members, type, ['type', 'key']);
    if (comparison === null) return null;
    return {
      compile: (compiler) => {
        const text = `(contact.properties ->> ${compiler.bind(String(property.number))}::text)`;
        return comparison.compile(toSqlValue(text), compiler);
      },
      references: [{ kind: 'property', id: property.id }],
      isTimeBound: comparison.isTimeBound,
      readsMessages: false,
    };
  },
};

function readProperty(reading: Reading, place: Place): ConditionProperty | null {
  const key = readText(reading, place);
  if (key === null) return null;
  return reading.findProperty(key) ?? addUnknown(reading, `${place.path} is not a defined property`);
}
