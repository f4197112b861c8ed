import { expect, test } from 'vitest';
import type { Condition, Group } from './conditions.ts';
import { explainConditions } from './explain.ts';

const leaf: Condition = {
  kind: 'leaf',
  given: { type: 'tag' },
  compile: () => {
    throw new Error('nothing is compiled here');
  },
  references: [],
  isTimeBound: false,
  readsMessages: false,
};

const cases: [match: Group['match'], truths: [boolean, boolean], holds: boolean][] = [
  ['all', [true, true], true],
  ['all', [true, false], false],
  ['all', [false, false], false],
  ['any', [true, true], true],
  ['any', [false, true], true],
  ['any', [false, false], false],
  ['none', [true, true], false],
  ['none', [false, true], false],
  ['none', [false, false], true],
];

test.each(cases)('whether the group `%s` holds of which the parts are %j: %s', (match, truths, holds) => {
  const group: Condition = { kind: 'group', match, conditions: [leaf, leaf] };
  const parts = truths.map((truth) => ({ type: 'tag', holds: truth }));
  expect(explainConditions(group, truths)).toEqual({ type: 'group', match, conditions: parts, holds });
  // Inside another one, too, whose other part comes after it.
  expect(
    explainConditions({ kind: 'group', match: 'all', conditions: [group, leaf] }, [...truths, true]),
  ).toMatchObject({ holds, conditions: [{ holds }, { holds: true }] });
});
