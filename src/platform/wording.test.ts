import { expect, test } from 'vitest';
import { wordFor } from './wording.ts';

test('one is a day or a person, and none and all other numbers are days or people', () => {
  expect([0, 1, 2, 21].map((count) => wordFor(count, 'day'))).toEqual(['days', 'day', 'days', 'days']);
  expect([0, 1, 2].map((count) => wordFor(count, 'person', 'people'))).toEqual([
    'people',
    'person',
    'people',
  ]);
});
