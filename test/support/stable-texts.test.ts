import { expect, test } from 'vitest';
import { createStableTexts } from './stable-texts.ts';

test('what happened before a minute began is of the one before, however short before', () => {
  const texts = createStableTexts();
  const times = Array.from({ length: 50 }, () => {
    texts.begin();
    return new Date().toISOString();
  });
  texts.begin();
  expect(texts.replace(times)).toEqual(
    times.map((_, index) => new Date(Date.UTC(2026, 10, 21, 10, index + 1)).toISOString()),
  );
});
