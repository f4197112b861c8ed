import { Type } from 'typebox';
import type { Schema } from '../platform/http/openapi.ts';
import { leavesMax, levelsMax, matches } from './conditions.ts';
import type { LeafForm, LeafType } from './leaf.ts';
import { leafTypes } from './nodes/registry.ts';

/**
 * The field `conditions` of a body. A schema would say of a wrong tree only that no alternative fits: it is
 * `parseConditions` that checks it, and `describeConditions` that describes it.
 */
export const conditionsSchema = Type.Unsafe<Readonly<Record<string, unknown>>>({
  type: 'object',
  title: 'Condition',
});

/** The conditions of an answer, each with `holds`. */
export const explainedConditionsSchema = Type.Unsafe<Readonly<Record<string, unknown>>>({
  type: 'object',
  title: 'ExplainedCondition',
});

const description = [
  `A tree, at most ${levelsMax} levels deep and with at most ${leavesMax} conditions that are not groups.`,
  'Operators that negate (`neq`, `is_not_set` and those that begin with `not_`) also match contacts without a value; the others do not.',
].join('\n\n');

/**
 * What conditions may be, as JSON Schema: for the description of the API, in the place of the schemas of those titles.
 * A schema lets through what only an organization decides (whether there is such a list), and what takes arithmetic:
 * depth, number, the order of two bounds, ten years.
 */
export function describeConditions(): Record<'Condition' | 'ExplainedCondition', Schema> {
  return {
    Condition: unionOf('Condition', description, {}),
    ExplainedCondition: unionOf('ExplainedCondition', 'A condition as it was given, and whether it holds.', {
      holds: { type: 'boolean', description: 'Whether it holds for the contact now.' },
    }),
  };
}

/** `more` are fields that every condition of the tree has besides its own. */
function unionOf(name: string, about: string, more: Readonly<Record<string, Schema>>): Schema {
  const prefix = name.replace(/Condition$/, '');
  const reference = (title: string) => `#/components/schemas/${prefix}${title}`;
  const group: LeafForm = {
    fields: {
      match: { type: 'string', enum: matches },
      conditions: { type: 'array', minItems: 1, items: { $ref: `#/components/schemas/${name}` } },
    },
  };
  const types: [type: string, LeafType | GroupType][] = [
    ['group', { title: 'GroupCondition', description: groupDescription, forms: [group] }],
    ...Object.entries(leafTypes),
  ];
  return {
    oneOf: types.map(([type, { title, description: what, forms }]) => {
      const described = forms.map((form) => formOf(type, form, more));
      const [only] = described;
      const shape = described.length === 1 ? only : { type: 'object', oneOf: described };
      return { title: `${prefix}${title}`, ...shape, description: what };
    }),
    discriminator: {
      propertyName: 'type',
      mapping: Object.fromEntries(types.map(([type, { title }]) => [type, reference(title)])),
    },
    description: about,
  };
}

type GroupType = Pick<LeafType, 'title' | 'description' | 'forms'>;

const groupDescription = 'How many of its conditions must hold: `all`, `any` or `none`.';

function formOf(type: string, { fields, optional = [] }: LeafForm, more: Readonly<Record<string, Schema>>) {
  const properties: Record<string, Schema> = { type: { type: 'string', const: type }, ...fields, ...more };
  return {
    type: 'object',
    required: Object.keys(properties).filter((name) => !optional.includes(name)),
    properties,
    additionalProperties: false,
  };
}
