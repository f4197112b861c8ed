import { expect, test } from 'vitest';
import { readTraceId } from './trace.ts';

const trace = '0af7651916cd43dd8448eb211c80319c';
const parent = 'b7ad6b7169203331';

test.each([
  ['of this version', `00-${trace}-${parent}-01`],
  ['that is not sampled', `00-${trace}-${parent}-00`],
  ['with flags that nobody knows', `00-${trace}-${parent}-ff`],
  ['of a later version', `cc-${trace}-${parent}-01`],
  ['of a later version that says more', `cc-${trace}-${parent}-01-what-the-future-will-be-like`],
])('a header %s names its trace', (_which, header) => {
  expect(readTraceId(header)).toBe(trace);
});

test.each([
  ['that is missing', undefined],
  ['that is empty', ''],
  ['of the version that is none', `ff-${trace}-${parent}-01`],
  ['of this version that says more', `00-${trace}-${parent}-01-more`],
  ['of this version with a dash at its end', `00-${trace}-${parent}-01-`],
  ['of a later version whose flags go on', `cc-${trace}-${parent}-01.more`],
  ['in upper case', `00-${trace.toUpperCase()}-${parent}-01`],
  ['with a trace of zeros', `00-${'0'.repeat(32)}-${parent}-01`],
  ['with a parent of zeros', `00-${trace}-${'0'.repeat(16)}-01`],
  ['whose trace is short', `00-${trace.slice(1)}-${parent}-01`],
  ['whose trace is no number', `00-${'g'.repeat(32)}-${parent}-01`],
  ['with blanks around it', ` 00-${trace}-${parent}-01 `],
  ['with a line after it', `00-${trace}-${parent}-01\n`],
  ['that is there twice', `00-${trace}-${parent}-01, 00-${trace}-${parent}-01`],
  ['that is there twice, as a list', [`00-${trace}-${parent}-01`, `00-${trace}-${parent}-01`]],
  ['that is very long', `00-${'a'.repeat(100_000)}`],
])('a header %s is ignored', (_which, header) => {
  expect(readTraceId(header)).toBeNull();
});
