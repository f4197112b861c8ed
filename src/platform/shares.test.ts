import { expect, test } from 'vitest';
import { createShares, type Shares } from './shares.ts';

function takeAll(shares: Shares, holder: string): number {
  let count = 0;
  while (shares.take(holder, 1) !== null) count += 1;
  return count;
}

test('one holder gets half, and each that comes later gets a share, however greedy the others are', () => {
  const shares = createShares(1_000);
  expect(takeAll(shares, 'first')).toBe(500);
  expect(takeAll(shares, 'second')).toBe(250);
  expect(takeAll(shares, 'third')).toBe(125);
  expect(shares.take('fourth', 1)).not.toBeNull();
});

test('holders that take in turns get equal shares, and leave one', () => {
  const shares = createShares(400);
  const counts = new Map([...'abc'].map((holder) => [holder, 0]));
  for (let round = 0; round < 400; round += 1) {
    for (const [holder, count] of counts) {
      if (shares.take(holder, 1) !== null) counts.set(holder, count + 1);
    }
  }
  expect([...counts.values()]).toEqual([100, 100, 100]);
});

test('a holder that has nothing gets what is left, and not more', () => {
  const shares = createShares(100);
  expect(shares.take('a', 101)).toBeNull();
  expect(shares.take('a', 60)).not.toBeNull();
  expect(shares.take('a', 1)).toBeNull();
  expect(shares.take('b', 40)).not.toBeNull();
  expect(shares.take('c', 1)).toBeNull();
});

test('what is given back can be taken again, and only once', () => {
  const shares = createShares(100);
  const share = shares.take('a', 30);
  expect(share?.grow(20)).toBe(true);
  expect(share?.grow(20)).toBe(false);
  expect(shares.take('b', 51)).toBeNull();
  share?.release();
  share?.release();
  expect(shares.take('b', 100)).not.toBeNull();
});
