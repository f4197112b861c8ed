import { expect, test } from 'vitest';
import { latestOfEach } from './latest-findings.ts';

const at = (hour: number) => new Date(Date.UTC(2026, 0, 1, hour));
const found = (addressKey: string, sentAt: Date | null) => ({ addressKey, sentAt });

test('of what is said of an address the message that was sent last counts, in whatever order they come', () => {
  const findings = [found('b', at(2)), found('b', at(3)), found('b', at(1)), found('a', at(9))];
  expect(latestOfEach(findings)).toEqual([found('a', at(9)), found('b', at(3))]);
  expect(latestOfEach(findings.toReversed())).toEqual([found('a', at(9)), found('b', at(3))]);
});

test('what was handed off just now is later than any other', () => {
  const findings = [found('a', null), found('a', at(1))];
  expect(latestOfEach(findings)).toEqual([found('a', null)]);
  expect(latestOfEach(findings.toReversed())).toEqual([found('a', null)]);
});
