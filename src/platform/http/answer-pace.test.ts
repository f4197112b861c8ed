import { expect, test } from 'vitest';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { createAnswerPace } from './answer-pace.ts';

const limits = { bytesPerSecond: 1_000, burstBytes: 5_000, waitMaxMs: 2_000 };

function open() {
  const clock = createManualClock();
  const pace = createAnswerPace(clock, limits);
  /** How long an answer of so many bytes waits, when one is asked for after the other. */
  const read = (holder: string, bytes: number) => {
    pace.note(holder);
    const answer = pace.begin(holder);
    answer?.end(bytes);
    return answer?.waitMs ?? 'refused';
  };
  return { clock, pace, read };
}

test('whoever reads alone is never late, however much that is', () => {
  const { read, clock, pace } = open();
  pace.note('other');
  clock.advance(10_000);
  expect(Array.from({ length: 20 }, () => read('a', 5_000))).toEqual(Array(20).fill(0));
});

test('beside others, what is beyond the rate is late by as much, and then refused', () => {
  const { read, pace } = open();
  pace.note('other');
  expect(read('a', 5_000)).toBe(0);
  expect(read('a', 1_000)).toBe(0);
  expect(read('a', 500)).toBe(1_000);
  expect(read('a', 1_000)).toBe(1_500);
  expect(read('a', 1_000)).toBe('refused');
});

test('others are not late for that, and time makes it good', () => {
  const { read, clock, pace } = open();
  pace.note('other');
  read('a', 6_000);
  expect(read('other', 4_000)).toBe(0);
  expect(read('a', 0)).toBe(1_000);
  clock.advance(400);
  expect(read('a', 0)).toBe(600);
  clock.advance(60_000);
  pace.note('other');
  // No more than the burst is saved up.
  expect([read('a', 5_000), read('a', 1_000), read('a', 0)]).toEqual([0, 0, 1_000]);
});

test('answers that are asked for at once wait for each other, as large as the last ones were', () => {
  const { read, pace } = open();
  pace.note('other');
  for (let time = 0; time < 10; time += 1) read('a', 500);
  pace.note('other');
  const begun = Array.from({ length: 4 }, () => pace.begin('a'));
  const waits = begun.map((each) => Math.round((each?.waitMs ?? NaN) / 10) * 10);
  expect(waits).toEqual([0, 500, 1_000, 1_500]);
  // Those that came to nothing cost nothing.
  for (const each of begun) each?.end(0);
  expect(pace.begin('a')?.waitMs).toBe(0);
});
