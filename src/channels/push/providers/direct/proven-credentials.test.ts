import { expect, test } from 'vitest';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import { createProvenCredentials } from './proven-credentials.ts';

test('credentials are proven for an hour after each push that was accepted, and others are not', () => {
  const clock = createManualClock();
  const proven = createProvenCredentials(clock);
  expect(proven.isProven('acme')).toBe(false);
  proven.note('acme');
  clock.advance(3_599_999);
  expect([proven.isProven('acme'), proven.isProven('globex')]).toEqual([true, false]);
  proven.note('acme');
  clock.advance(3_599_999);
  expect(proven.isProven('acme')).toBe(true);
  clock.advance(1);
  expect(proven.isProven('acme')).toBe(false);
});
