import { expect, test } from 'vitest';
import { partOf, shareAmong } from './process-share.ts';

const upTo = (count: number) => Array.from({ length: count }, (_, index) => index + 1);

test('the parts of all processes add up to the total, and differ by one at most', () => {
  for (const total of [1, 2, 7, 8, 16, 200]) {
    for (const of of [1, 2, 3, 8, 64]) {
      const parts = upTo(of).map((number) => partOf(total, { number, of }));
      expect(parts.reduce((sum, part) => sum + part, 0)).toBe(total);
      expect(Math.max(...parts) - Math.min(...parts)).toBeLessThanOrEqual(1);
    }
  }
});

test('what fewer processes may do is shared by the first of them, each with a part', () => {
  const shares = upTo(4).map((number) => shareAmong(2, { number, of: 4 }));
  expect(shares).toEqual([{ number: 1, of: 2 }, { number: 2, of: 2 }, null, null]);
  expect(shareAmong(8, { number: 2, of: 4 })).toEqual({ number: 2, of: 4 });
});
