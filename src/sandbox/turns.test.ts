import { expect, test } from 'vitest';
import { createTurns } from './turns.ts';

test('works run one at a time, in their order, and past one that fails', async () => {
  const inTurn = createTurns(10);
  const log: string[] = [];
  const work = (name: string, fails = false) =>
    inTurn(async () => {
      log.push(`${name} begins`);
      await Promise.resolve();
      log.push(`${name} ends`);
      if (fails) throw new Error(name);
      return name;
    });
  const results = await Promise.allSettled([work('first'), work('second', true), work('third')]);
  expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
  expect(log).toEqual([
    'first begins',
    'first ends',
    'second begins',
    'second ends',
    'third begins',
    'third ends',
  ]);
});

test('whoever finds the queue full is sent away, and may come again later', async () => {
  const inTurn = createTurns(2);
  const wait = () => inTurn(() => Promise.resolve('done'));
  const waiting = [wait(), wait()];
  await expect(wait()).rejects.toMatchObject({ definition: { statusCode: 503 } });
  await Promise.all(waiting);
  await expect(wait()).resolves.toBe('done');
});
