/** Bodies full of unknown fields: each is compared with the known ones, and that must stay cheap. */
import { Type } from 'typebox';
import { expect, test } from 'vitest';
import { createValidation } from '../../src/platform/http/validation.ts';
import { suggestName } from '../../src/platform/suggestion.ts';

const letter = Type.Object(
  { subject: Type.Optional(Type.String()), template_id: Type.Optional(Type.String()) },
  { additionalProperties: false },
);
const check = createValidation({}).compile(letter);

/** As many as a body may have. */
const fieldsMax = 50_000;

test('of a body full of typing errors fifty are reported, each with what was meant', () => {
  const typos = Array.from({ length: fieldsMax }, (_, index) => [`subject${index % 100}x${index}`, 1]);
  typos.unshift(['subjekt', 1]);
  const issues = check(Object.fromEntries(typos));
  expect(issues).toHaveLength(50);
  expect(issues[0]).toBe('subjekt is not a known field (did you mean subject?)');
});

test('names that look alike once they are made readable are one issue, and not all of them are looked through', () => {
  const alike = Array.from({ length: fieldsMax }, (_, index) => [
    `subj${String.fromCodePoint(0xe000 + (index % 6_000))}${String.fromCodePoint(0xe000 + Math.floor(index / 6_000))}ct`,
    1,
  ]);
  expect(check(Object.fromEntries([...alike, ['other', 1]]))).toEqual([
    'subj??ct is not a known field (did you mean subject?)',
  ]);
});

test('a name of megabytes is like none that is known, and is compared with none', () => {
  const long = 'subject'.repeat(1_000_000);
  expect(suggestName(long, ['subject'])).toBeNull();
  expect(check({ [long]: 1 })).toEqual([`${long.slice(0, 60)}… is not a known field`]);
});
