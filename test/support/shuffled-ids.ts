/** Ids whose order is not that in which they were made: what takes the one for the other is found out. */
import { v7 } from 'uuid';
import type { NewId } from '../../src/platform/ids.ts';

/** UUIDv7 of one millisecond, as several nodes make them at once; every second one is of a time before it. */
export function createShuffledIds(epochMs: number): NewId {
  let made = 0;
  return () => {
    made += 1;
    return v7({ msecs: epochMs - (made % 2) * (1_000 + made) });
  };
}
