import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import { createPace } from './pace.ts';

/** A pace that has been measured at one message in so many milliseconds. */
function measured(serviceMs: number, random = 0) {
  const clock = createManualClock();
  const pace = createPace(clock, () => random);
  pace.noteBusy();
  for (let at = 0; at < 200; at += 1) {
    clock.advance(serviceMs);
    pace.noteSettled(true);
  }
  return { clock, pace };
}

test('what comes back is booked one service time apart, after what waits already', () => {
  const { pace } = measured(1_000);
  expect([1, 2, 3].map(() => Math.round(pace.book(4, 0) / 100))).toEqual([50, 60, 70]);
});

test('a pause comes before everything', () => {
  const { pace } = measured(1_000);
  expect(Math.round(pace.book(0, 300_000) / 100)).toBe(3_010);
});

test('bookings that have gone by are forgotten', () => {
  const { pace, clock } = measured(1_000);
  for (let at = 0; at < 10; at += 1) pace.book(0, 0);
  pace.noteSettled(false);
  clock.advance(20_000);
  expect(pace.book(0, 0)).toBeLessThan(2_000);
});

test('time in which nothing was there to do does not count', () => {
  const { pace, clock } = measured(100);
  pace.noteSettled(false);
  clock.advance(3_600_000);
  pace.noteBusy();
  clock.advance(100);
  pace.noteSettled(false);
  expect(pace.book(0, 0)).toBe(250);
});

test('a destination that has fallen silent is slow', () => {
  const { pace, clock } = measured(100);
  clock.advance(30_000);
  expect(pace.book(0, 0)).toBe(30_000);
});

test('every answer is from a quarter of a second to a minute, and those beyond the book are spread', () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 0, max: 100_000 }),
      fc.nat(1_000),
      fc.array(fc.nat(500), { maxLength: 50 }),
      fc.double({ min: 0, max: 1, noNaN: true }),
      (serviceMs, bookings, waiting, random) => {
        const { pace } = measured(serviceMs, random);
        for (let at = 0; at < bookings; at += 1) pace.book(0, 0);
        for (const ahead of waiting) {
          const retryAfterMs = pace.book(ahead, 0);
          expect(retryAfterMs).toBeGreaterThanOrEqual(250);
          expect(retryAfterMs).toBeLessThanOrEqual(60_000);
        }
      },
    ),
    { numRuns: 50 },
  );
  const { pace } = measured(60_000, 1);
  expect(pace.book(10, 0)).toBe(45_000);
});
