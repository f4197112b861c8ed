import fc from 'fast-check';
import { expect, test } from 'vitest';
import { dueAfterMs, nextPauseMs, pauseMsMax } from './retry.ts';

const minuteMs = 60_000;
const middle = 0.5;

test('the pauses grow from a minute to six hours and stay there', () => {
  const pauses = Array.from({ length: 10 }, (_, made) => nextPauseMs(made + 1, undefined, middle) / minuteMs);
  expect(pauses).toEqual([1, 5, 15, 30, 60, 120, 240, 360, 360, 360]);
});

test('a pause strays from its length by a fifth at most, in both directions', () => {
  expect([nextPauseMs(2, undefined, 0), nextPauseMs(2, undefined, 1)]).toEqual([4 * minuteMs, 6 * minuteMs]);
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 200 }),
      fc.double({ min: 0, max: 1, noNaN: true }),
      (attempts, random) => {
        const straight = nextPauseMs(attempts, undefined, middle);
        const pause = nextPauseMs(attempts, undefined, random);
        expect(Number.isInteger(pause)).toBe(true);
        expect(pause).toBeGreaterThanOrEqual(straight * 0.8 - 1);
        expect(pause).toBeLessThanOrEqual(straight * 1.2 + 1);
      },
    ),
  );
});

test('what the remote side asks for is obeyed, from a second to an hour', () => {
  const asked = [0, 999, 1_000, 90_000, 3_600_000, 3_600_001, 86_400_000];
  expect(asked.map((retryAfterMs) => nextPauseMs(3, retryAfterMs, middle))).toEqual([
    1_000, 1_000, 1_000, 90_000, 3_600_000, 3_600_000, 3_600_000,
  ]);
});

test('no pause is as long as what is brought forward as the work of a clock that was ahead', () => {
  for (let attempts = 1; attempts <= 20; attempts += 1)
    expect(nextPauseMs(attempts, undefined, 1)).toBeLessThan(pauseMsMax);
  expect(dueAfterMs(1_000, 5_000)).toBe(6_000);
  expect(dueAfterMs(1_000, 30 * pauseMsMax)).toBe(1_000 + pauseMsMax);
});
