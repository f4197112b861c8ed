/** Ids whose order is not that in which they were made, to find code that takes the one for the other. */
import { v7 } from 'uuid';
import type { Clock } from '../../src/platform/clock.ts';
import type { NewId } from '../../src/platform/ids.ts';

/** How far back ids go: with more, some would fall into a day, or a month, that a test does not expect. */
const backMsMax = 4_000;

/** UUIDv7 of about the time, as nodes make them whose clocks differ; the same order in each run. */
export function createShuffledIds(clock: Clock): NewId {
  let made = 0;
  return () => {
    made += 1;
    return v7({ msecs: Math.trunc(clock.nowMs()) - (scatter(made) % backMsMax) });
  };
}

/** Mixes the bits, so that any selection of the numbers has no order: some places make two ids at once, or five. */
function scatter(number: number): number {
  const mixed = Math.imul(number ^ (number >>> 16), 0x45d9f3b);
  return Math.imul(mixed ^ (mixed >>> 16), 0x45d9f3b) >>> 0;
}
