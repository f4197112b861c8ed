import { expect, test } from 'vitest';
import { parseRetryAfter } from './retry-after.ts';

/** 1994-11-06, a Sunday: the time that RFC 9110 §5.6.7 writes in three ways. */
const givenMs = Date.UTC(1994, 10, 6, 8, 49, 37);

test.each([
  ['0', 0],
  ['120', 120_000],
  ['999999999', 999_999_999_000],
  ['Sun, 06 Nov 1994 08:49:37 GMT', 60_000],
  ['Sunday, 06-Nov-94 08:49:37 GMT', 60_000],
  ['Sun Nov  6 08:49:37 1994', 60_000],
  ['Sun, 06 Nov 1994 08:48:30 GMT', 0],
])('%j a minute before asks for %i ms', (text, expected) => {
  expect(parseRetryAfter(text, givenMs - 60_000)).toBe(expected);
});

test.each([
  ...[
    '',
    ' ',
    '-1',
    '1.5',
    '1e3',
    '0x10',
    '9999999999',
    'soon',
    '120 s',
    '2026-11-27',
    '2026-11-27T10:00:00Z',
  ],
  ...['Sun, 06 Nov 1994 08:49:37', 'Sun, 06 Nov 1994 08:49:37 CET', 'Sun, 99 Nov 1994 08:49:37 GMT'],
])('%j is not read', (text) => {
  expect(parseRetryAfter(text, givenMs)).toBeNull();
});

test('without a present time, seconds are read, and dates are not', () => {
  expect(parseRetryAfter('120', null)).toBe(120_000);
  expect(parseRetryAfter('Sun, 06 Nov 1994 08:49:37 GMT', null)).toBeNull();
});
