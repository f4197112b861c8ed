import { Type } from 'typebox';
import { type Values, valueNamePattern } from '../channels/placeholders.ts';
import { optional, optionalText } from '../platform/http/shapes.ts';

/** Content fields that campaigns on several channels share. */

export const categoryInput = optionalText({
  minLength: 1,
  maxLength: 100,
  format: 'filled-line',
  composed: true,
  description: 'A label for analytics.',
});

export const variablesInput = optional<Values>('object', {
  patternProperties: {
    [valueNamePattern]: { type: ['string', 'number', 'boolean'], maxLength: 10_000, sensitive: true },
  },
  additionalProperties: false,
  maxProperties: 500,
  description: 'What stands for `{{name}}` where a contact has no value of its own.',
});

export const variablesOrNull = Type.Unsafe<Values | null>({
  type: ['object', 'null'],
  additionalProperties: { type: ['string', 'number', 'boolean'] },
});

/** The values that a content uses. Others are left out, since every value costs time for each copy. */
export function pickValues(values: Values, names: readonly string[]): Values {
  const wanted = new Set(names);
  return Object.fromEntries(Object.entries(values).filter(([name]) => wanted.has(name)));
}
