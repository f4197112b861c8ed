import fc from 'fast-check';
import { expect, test } from 'vitest';
import { asksForLess, attemptsMax, nextAttemptInMs } from './retry-schedule.ts';

const hour = 3_600_000;

test('a webhook is tried ten times within three days and a bit', () => {
  const delays = Array.from({ length: attemptsMax }, (_, at) =>
    nextAttemptInMs({ failures: at + 1, retryAfterMs: null, random: 0.5 }),
  );
  expect(delays).toEqual([
    ...[5_000, 300_000, 1_800_000, 2 * hour, 5 * hour, 10 * hour, 14 * hour, 20 * hour, 24 * hour],
    null,
  ]);
});

test('attempts are spread by a fifth to both sides', () => {
  const at = (random: number) => nextAttemptInMs({ failures: 2, retryAfterMs: null, random });
  expect([at(0), at(0.5), at(1)]).toEqual([240_000, 300_000, 360_000]);
});

test('a receiver gets the time that it asks for, up to a day, and never less than the schedule has', () => {
  const at = (failures: number, retryAfterMs: number, random = 0) =>
    nextAttemptInMs({ failures, retryAfterMs, random });
  expect(at(1, 60_000)).toBe(60_000);
  expect(at(1, 60_000, 1)).toBe(72_000);
  expect(at(1, 0)).toBe(4_000);
  expect(at(4, 1_000)).toBe(1.6 * hour);
  expect(at(1, 999_999_999_000)).toBe(24 * hour);
  expect(at(attemptsMax, 60_000)).toBeNull();
});

test('whatever was asked for, the next attempt comes neither sooner nor much later', () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 9 }),
      fc.option(fc.integer({ min: 0 })),
      fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
      (failures, retryAfterMs, random) => {
        const delayMs = nextAttemptInMs({ failures, retryAfterMs, random });
        expect(delayMs).toBeGreaterThanOrEqual(Math.min(retryAfterMs ?? 0, 24 * hour));
        expect(delayMs).toBeLessThanOrEqual(1.2 * 24 * hour + 1);
      },
    ),
  );
});

test.each([
  [429, true],
  [502, true],
  [504, true],
  [500, false],
  [503, false],
  [200, false],
  [null, false],
])('the status %s asks for less at once: %s', (status, expected) => {
  expect(asksForLess(status)).toBe(expected);
});
