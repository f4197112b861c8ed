import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { createIds, isUuid, lowestIdAt } from './ids.ts';

function millisecondsOf(id: string): number {
  return Number.parseInt(id.replaceAll('-', '').slice(0, 12), 16);
}

test('every id is a UUIDv7 and greater than the one before it, also when the clock is put right', () => {
  const steps = fc.array(fc.integer({ min: -9_000, max: 9_000 }), { maxLength: 200 });
  fc.assert(
    fc.property(steps, (movesMs) => {
      const clock = createManualClock();
      const newId = createIds(clock);
      let last = newId();
      for (const moveMs of movesMs) {
        // Ten seconds before the highest time that it has shown: it counts as a clock that had been far ahead.
        clock.setWallTime(Math.max(clock.nowMs() + moveMs, millisecondsOf(last) - 10_000));
        const id = newId();
        expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
        expect(id > last).toBe(true);
        last = id;
      }
    }),
  );
});

test('ids are of the present again once a clock that was far ahead is back', () => {
  const clock = createManualClock();
  const newId = createIds(clock);
  const before = newId();
  const presentMs = clock.nowMs();
  clock.setWallTime(presentMs + 10 * 366 * 86_400_000);
  newId();
  clock.setWallTime(presentMs + 1_000);
  const [first, second] = [newId(), newId()];
  expect(millisecondsOf(first)).toBe(presentMs + 1_000);
  expect(before < first && first < second).toBe(true);
});

test('fifty thousand ids of one millisecond go up and carry that millisecond', () => {
  const clock = createManualClock();
  const newId = createIds(clock);
  let last = '';
  for (let count = 0; count < 50_000; count += 1) {
    const id = newId();
    if (id <= last) expect.fail(`${id} came after ${last}`);
    last = id;
  }
  expect(millisecondsOf(last)).toBe(clock.nowMs());
});

test('an id carries the time at which it was made, and two processes do not make the same', () => {
  const clock = createManualClock();
  const [newId, another] = [createIds(clock), createIds(clock)];
  clock.advance(12_345);
  expect(millisecondsOf(newId())).toBe(clock.nowMs());
  const ids = Array.from({ length: 1_000 }, () => [newId(), another()]).flat();
  expect(new Set(ids).size).toBe(2_000);
});

test('every id of an instant lies between the lowest of this millisecond and of the next', () => {
  const clock = createManualClock();
  const id = createIds(clock)();
  expect(id >= lowestIdAt(clock.nowMs())).toBe(true);
  expect(id < lowestIdAt(clock.nowMs() + 1)).toBe(true);
  expect(lowestIdAt(0)).toBe('00000000-0000-0000-0000-000000000000');
});

test('a UUID is distinguished from what only looks like one', () => {
  expect(isUuid('01934c1e-9f3a-7cc0-8b1a-000000000001')).toBe(true);
  expect(isUuid('01934C1E-9F3A-7CC0-8B1A-000000000001')).toBe(true);
  for (const text of [
    '',
    '01934c1e9f3a7cc08b1a000000000001',
    '{01934c1e-9f3a-7cc0-8b1a-000000000001}',
    '01934c1e-9f3a-7cc0-8b1a-00000000000g',
    '01934c1e-9f3a-7cc0-8b1a-000000000001\n',
    '01934c1e-9f3a-7cc0-8b1a-00000000000\0',
  ]) {
    expect(isUuid(text), JSON.stringify(text)).toBe(false);
  }
});
