import { itemsSchema, type Place, type Reading, readItems, readText, textSchema } from '../reading.ts';
import { comparison, type OperandReader, type ValueType } from './operator.ts';

/** More of them are a list, and belong into one. */
const textsMax = 500;

/**
 * Texts are compared as they are stored, case-sensitively. `toKey` converts an operand to the form in which the values
 * are stored, if it differs from the one that people write.
 */
export function textType(toKey: (text: string) => string): ValueType {
  const readKey = (reading: Reading, operand: Place) => {
    const text = readText(reading, operand);
    return text === null ? null : toKey(text);
  };
  const withText = (compile: (value: string, key: string) => string): OperandReader => ({
    schema: textSchema,
    read: (reading, operand) => {
      const key = readKey(reading, operand);
      if (key === null) return null;
      return comparison((value, { bind }) => compile(value, `${bind(key)}::text`));
    },
  });
  return {
    withValue: {
      eq: withText((value, key) => `${value} = ${key}`),
      in: {
        schema: itemsSchema(textSchema, textsMax),
        read: (reading, operand) => {
          const keys = readItems(reading, operand, textsMax, readKey);
          return keys === null
            ? null
            : comparison((value, { bind }) => `${value} = any (${bind(keys)}::text[])`);
        },
      },
      // None of these uses a pattern, in which special characters would have to be escaped.
      contains: withText((value, key) => `strpos(${value}, ${key}) > 0`),
      starts_with: withText((value, key) => `starts_with(${value}, ${key})`),
      ends_with: withText((value, key) => `right(${value}, length(${key})) = ${key}`),
    },
    withoutValue: {},
    negations: { neq: 'eq', not_in: 'in', not_contains: 'contains' },
  };
}
