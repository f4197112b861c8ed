import { Type } from 'typebox';
import { leavesMax, levelsMax, matches } from './conditions.ts';
import { leafTypes } from './nodes/registry.ts';

const leafDescriptions = Object.entries(leafTypes).map(
  ([name, { description }]) => `- \`${name}\`: ${description}`,
);

/**
 * The field `conditions` of a body. A schema would say of a wrong tree only that no alternative fits: it is
 * `parseConditions` that checks it, and this tells people what it takes.
 */
export const conditionsSchema = Type.Unsafe<Readonly<Record<string, unknown>>>({
  type: 'object',
  description: [
    `A tree, at most ${levelsMax} levels deep and with at most ${leavesMax} conditions that are no groups. Every condition has a \`type\`:`,
    [
      `- \`group\`: \`match\` (${matches.join(', ')}) and \`conditions\`, at least one.`,
      ...leafDescriptions,
    ].join('\n'),
    'An operator that negates (neq, is_not_set and those that begin with not_) also matches contacts without a value; no other does.',
  ].join('\n\n'),
  examples: [
    {
      type: 'group',
      match: 'all',
      conditions: Object.values(leafTypes).map(({ example }) => example),
    },
  ],
});
