import { expect, test } from 'vitest';
import { formatBytes, parseBytes } from './bytes.ts';

test.each([
  [0, '0 B'],
  [999, '999 B'],
  [1_000, '1.0 kB'],
  [999_949, '999.9 kB'],
  [999_950, '1.0 MB'],
  [4_200_000_000, '4.2 GB'],
  [12_345_000_000_000_000, '12345.0 TB'],
])('%d bytes are shown as %s', (bytes, shown) => {
  expect(formatBytes(bytes)).toBe(shown);
});

test.each([
  ['0', 0],
  ['1500', 1_500],
  ['500MB', 500_000_000],
  ['500mb', 500_000_000],
  ['2.5 GB', 2_500_000_000],
  ['1000TB', 1_000 ** 5],
  ['1000.001TB', null],
  ['1GiB', null],
  ['-1', null],
  ['1e9', null],
  ['', null],
  ['GB', null],
])('%s is read as %s', (text, bytes) => {
  expect(parseBytes(text)).toBe(bytes);
});
