import { expect, test } from 'vitest';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import { createBoundConnection } from './bound-connection.ts';
import type { SmppWire } from './wire.ts';

/** Nothing of the wire is asked for. */
const wire = {} as SmppWire;

test('all that wait for its texts to end go on with the last of them, and no timer is left', async () => {
  const clock = createManualClock();
  const line = createBoundConnection(clock, wire, 10);
  const [freeOne, freeOther] = [line.takePlace(), line.takePlace()];
  const drained = [line.drain(5_000), line.drain(5_000)];
  expect(line.room()).toBe(0);
  freeOne();
  expect(clock.countWaiting()).toBe(2);
  freeOther();
  await Promise.all(drained);
  expect(clock.countWaiting()).toBe(0);
});

test('who waits for texts that do not end goes on after their time', async () => {
  const clock = createManualClock();
  const line = createBoundConnection(clock, wire, 10);
  line.takePlace();
  const drained = line.drain(5_000);
  clock.advance(5_000);
  await expect(drained).resolves.toBeUndefined();
});
