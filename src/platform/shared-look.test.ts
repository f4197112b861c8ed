import { expect, test } from 'vitest';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { createSharedLook } from './shared-look.ts';

const limits = { keptMs: 5_000, lookMaxMs: 3_000 };

/** Looks that end when they are told to. */
function createLooks() {
  const ends: ((answer: string | Error) => void)[] = [];
  const look = () =>
    new Promise<string>((resolve, reject) => {
      ends.push((answer) => {
        if (answer instanceof Error) reject(answer);
        else resolve(answer);
      });
    });
  return { look, ends };
}

test('those who ask while it is looked up, and soon after, share one look', async () => {
  const clock = createManualClock();
  const { look, ends } = createLooks();
  const ask = createSharedLook(clock, limits, look);
  const asked = Array.from({ length: 300 }, ask);
  expect(ends).toHaveLength(1);
  ends[0]!('first');
  expect(new Set(await Promise.all(asked))).toEqual(new Set(['first']));
  clock.advance(4_999);
  expect(await ask()).toBe('first');
  expect(ends).toHaveLength(1);
  clock.advance(1);
  const again = ask();
  expect(ends).toHaveLength(2);
  ends[1]!('second');
  expect(await again).toBe('second');
});

test('a look that does not end is given up by those who wait, and not begun again', async () => {
  const clock = createManualClock();
  const { look, ends } = createLooks();
  const ask = createSharedLook(clock, limits, look);
  for (let count = 1; count <= 3; count += 1) {
    const asked = ask();
    clock.advance(3_000);
    expect(await asked).toBeNull();
  }
  expect(ends).toHaveLength(1);
  const asked = ask();
  ends[0]!('at last');
  expect(await asked).toBe('at last');
});

test('a look that fails is no answer, and is not repeated at once', async () => {
  const clock = createManualClock();
  const { look, ends } = createLooks();
  const ask = createSharedLook(clock, limits, look);
  const asked = ask();
  ends[0]!(new Error('away'));
  expect(await asked).toBeNull();
  expect(await ask()).toBeNull();
  expect(ends).toHaveLength(1);
  clock.advance(5_000);
  const again = ask();
  ends[1]!('back');
  expect(await again).toBe('back');
});
