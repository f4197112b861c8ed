import { expect, test } from 'vitest';
import { compileText, listMissing } from '../channels/placeholders.ts';
import { tellMissingVariables } from './missing-variables.ts';

const told = (names: readonly string[]) => tellMissingVariables(names)['postillion-missing-variables'];

test('names are told in their order, and nothing where nothing is missing', () => {
  expect(told(['first_name', 'plan'])).toBe('first_name, plan');
  expect(tellMissingVariables([])).toEqual({});
});

test('what does not fit is left out, and it is said that there is more', () => {
  expect(told(['a'.repeat(100)])).toBe('a'.repeat(100));
  expect(told(['a'.repeat(101)])).toBe('...');
  const many = Array.from({ length: 50 }, (_, index) => `name_${index}_${'x'.repeat(30)}`);
  expect(told(many)?.length).toBeLessThanOrEqual(1_005);
  expect(told(many)).toMatch(/^name_0_x{30}, name_1_.*, \.\.\.$/);
});

test('a name that is too long hides none of the others', () => {
  expect(told(['a', 'b'.repeat(5_000), 'c'])).toBe('a, c, ...');
});

test('only names are told: what is no placeholder never reaches a header', () => {
  const text =
    '{{a\r\nset-cookie: x}} {{ b }} {{{c}}} {{ü}} {{constructor}} {{a,b}} {{__proto__}} {{d}} {{b}}';
  const missing = listMissing(compileText(text, 'text'), { d: '' });
  expect(missing).toEqual(['b', 'c', 'constructor', '__proto__']);
  expect(told(missing)).toMatch(/^[A-Za-z0-9_., ]+$/);
});

test('of a million missing names fifty are kept', () => {
  const text = Array.from({ length: 100_000 }, (_, index) => `{{a${index}}}`).join('');
  expect(listMissing(compileText(text, 'text'), {})).toHaveLength(50);
});
