import { Type } from 'typebox';
import type { Values } from '../channels/placeholders.ts';

/** Fields that the contents of campaigns are made of on more than one channel. */

/** An input that may be null: said so in one type, so that what is wrong with it is said once. */
export const optional = <Value>(type: string, options: Record<string, unknown>) =>
  Type.Optional(Type.Unsafe<Value | null>({ type: [type, 'null'], ...options }));

export const categoryInput = optional<string>('string', {
  minLength: 1,
  maxLength: 100,
  format: 'single-line',
  description: 'A label for analytics.',
});

export const variablesInput = optional<Values>('object', {
  patternProperties: {
    '^[A-Za-z_][A-Za-z0-9_.]{0,254}$': { type: ['string', 'number', 'boolean'], maxLength: 10_000 },
  },
  additionalProperties: false,
  maxProperties: 500,
  description: 'What stands for `{{name}}` where a contact has no value of its own.',
});

export const textOrNull = Type.Union([Type.String(), Type.Null()]);

export const variablesOrNull = Type.Unsafe<Values | null>({ type: ['object', 'null'] });

/** Those of the values that a content asks for: each of them is looked at for each copy. */
export function pickValues(values: Values, names: readonly string[]): Values {
  const wanted = new Set(names);
  return Object.fromEntries(Object.entries(values).filter(([name]) => wanted.has(name)));
}
