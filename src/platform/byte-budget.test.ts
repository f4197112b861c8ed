import { expect, test } from 'vitest';
import { createByteBudget } from './byte-budget.ts';

test('bytes can be taken up to the limit, and not one more', () => {
  const budget = createByteBudget(100);
  expect(budget.take(60)).not.toBeNull();
  expect(budget.take(41)).toBeNull();
  expect(budget.take(40)).not.toBeNull();
  expect(budget.take(1)).toBeNull();
});

test('bytes that were given back can be taken again, and giving them back twice adds nothing', () => {
  const budget = createByteBudget(100);
  const giveBack = budget.take(100)!;
  giveBack();
  giveBack();
  expect(budget.take(100)).not.toBeNull();
  expect(budget.take(1)).toBeNull();
});
