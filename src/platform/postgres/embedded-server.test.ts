import { expect, test } from 'vitest';
import { chooseSharedBuffersMb } from './embedded-server.ts';

test.each([
  ['a small machine', 512, 128],
  ['a middling one', 8_192, 1_024],
  ['a large one', 65_536, 2_048],
  ['one whose memory is no round number', 3_001, 375],
])('the cache of PostgreSQL on %s of %d MB has %d MB', (_machine, memoryMb, expected) => {
  expect(chooseSharedBuffersMb(memoryMb * 1_048_576)).toBe(expected);
});
