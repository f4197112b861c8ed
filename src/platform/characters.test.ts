import fc from 'fast-check';
import { expect, test } from 'vitest';
import { isLongerThan } from './characters.ts';

test('characters are code points, however many code units they take', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary', maxLength: 30 }), fc.nat({ max: 30 }), (text, charactersMax) => {
      expect(isLongerThan(text, charactersMax)).toBe([...text].length > charactersMax);
    }),
  );
  expect(isLongerThan('😀'.repeat(998), 998)).toBe(false);
  expect(isLongerThan('😀'.repeat(999), 998)).toBe(true);
  expect(isLongerThan('\ud83d'.repeat(999), 998)).toBe(true);
});
