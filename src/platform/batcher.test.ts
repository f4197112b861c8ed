import { expect, test } from 'vitest';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { createBatcher } from './batcher.ts';

/** A batcher whose batches end when the test says so. */
function createHeldBatcher(options: { itemsMax: number; concurrency: number }) {
  const batches: { items: number[]; finish: () => void; fail: (cause: Error) => void }[] = [];
  let onBatch: () => void = () => undefined;
  const batcher = createBatcher<number, number>({
    ...options,
    run: (items) =>
      new Promise((resolve, reject) => {
        batches.push({
          items,
          finish: () => {
            resolve(items.map((item) => item * 10));
          },
          fail: reject,
        });
        onBatch();
      }),
  });
  const whenStarted = (count: number) =>
    new Promise<void>((resolve) => {
      onBatch = () => {
        if (batches.length >= count) resolve();
      };
      onBatch();
    });
  return { batcher, batches, whenStarted };
}

test('items of one turn share a batch, and what comes during it shares the next; each gets its own result', async () => {
  const { batcher, batches, whenStarted } = createHeldBatcher({ itemsMax: 10, concurrency: 1 });
  const first = [batcher.add(1), batcher.add(2)];
  await whenStarted(1);
  const second = [batcher.add(3), batcher.add(4), batcher.add(5)];
  expect(batcher.size()).toBe(5);
  batches[0]!.finish();
  await whenStarted(2);
  batches[1]!.finish();
  expect(await Promise.all([...first, ...second])).toEqual([10, 20, 30, 40, 50]);
  expect(batches.map(({ items }) => items)).toEqual([
    [1, 2],
    [3, 4, 5],
  ]);
});

test('no batch is larger than the limit, and no more are under way at once than allowed', async () => {
  const { batcher, batches, whenStarted } = createHeldBatcher({ itemsMax: 2, concurrency: 2 });
  const results = Promise.all([1, 2, 3, 4, 5].map((item) => batcher.add(item)));
  await whenStarted(2);
  expect(batches.map(({ items }) => items)).toEqual([
    [1, 2],
    [3, 4],
  ]);
  batches[1]!.finish();
  await whenStarted(3);
  expect(batches[2]!.items).toEqual([5]);
  batches[0]!.finish();
  batches[2]!.finish();
  expect(await results).toEqual([10, 20, 30, 40, 50]);
});

test('a batch that fails is the failure of its own items, and the next one is carried out', async () => {
  const { batcher, batches, whenStarted } = createHeldBatcher({ itemsMax: 2, concurrency: 1 });
  const outcomes = Promise.allSettled([1, 2, 3].map((item) => batcher.add(item)));
  await whenStarted(1);
  batches[0]!.fail(new Error('broken'));
  await whenStarted(2);
  batches[1]!.finish();
  expect((await outcomes).map(({ status }) => status)).toEqual(['rejected', 'rejected', 'fulfilled']);
});

test('a run that throws before it begins, or gives too few results, leaves no caller waiting', async () => {
  const throwing = createBatcher<number, number>({
    itemsMax: 2,
    concurrency: 1,
    run: () => {
      throw new Error('at once');
    },
  });
  await expect(throwing.add(1)).rejects.toThrow('at once');
  const short = createBatcher<number, number>({
    itemsMax: 2,
    concurrency: 1,
    run: () => Promise.resolve([1]),
  });
  const outcomes = await Promise.allSettled([short.add(1), short.add(2)]);
  expect(outcomes.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
  expect(short.size()).toBe(0);
});

test('it is idle only when nothing waits and nothing is under way', async () => {
  const { batcher, batches, whenStarted } = createHeldBatcher({ itemsMax: 1, concurrency: 1 });
  await batcher.drain();
  const order: string[] = [];
  const added = [1, 2].map((item) => batcher.add(item).then(() => order.push(`item ${item}`)));
  const idle = batcher.drain().then(() => order.push('idle'));
  await whenStarted(1);
  batches[0]!.finish();
  await whenStarted(2);
  batches[1]!.finish();
  await Promise.all([...added, idle]);
  expect(order).toEqual(['item 1', 'item 2', 'idle']);
  expect(batcher.size()).toBe(0);
});

test('a batch is held open for its time, also while another one runs, and one with enough is not', async () => {
  const clock = createManualClock();
  const batches: number[][] = [];
  const batcher = createBatcher<number, number>({
    itemsMax: 5,
    concurrency: 1,
    linger: { clock, lingerMs: 20, itemsEnough: 3 },
    run: (items) => {
      batches.push(items);
      return Promise.resolve(items);
    },
  });
  const first = batcher.add(1);
  clock.advance(19);
  expect(batches).toEqual([]);
  const second = batcher.add(2);
  clock.advance(1);
  await Promise.all([first, second]);
  expect(batches).toEqual([[1, 2]]);

  const filling = [3, 4, 5, 6].map((item) => batcher.add(item));
  await Promise.all(filling.slice(0, 3));
  expect(batches).toEqual([
    [1, 2],
    [3, 4, 5],
  ]);
  await clock.whenWaiting(1);
  clock.advance(20);
  await Promise.all(filling);
  expect(batches.at(-1)).toEqual([6]);
});

test('nothing is held open for more once it drains, neither what waits nor what comes while a batch runs', async () => {
  const clock = createManualClock();
  const batches: number[][] = [];
  let finish: () => void = () => undefined;
  const batcher = createBatcher<number, number>({
    itemsMax: 5,
    concurrency: 1,
    linger: { clock, lingerMs: 20, itemsEnough: 3 },
    run: async (items) => {
      batches.push(items);
      await new Promise<void>((resolve) => (finish = resolve));
      return items;
    },
  });
  const first = batcher.add(1);
  const drained = batcher.drain();
  expect(batches).toEqual([[1]]);
  const second = batcher.add(2);
  finish();
  await first;
  await expect.poll(() => batches).toEqual([[1], [2]]);
  finish();
  await Promise.all([second, drained]);
});

test('what waits can be hurried, also while a batch runs, and what comes later is held open as before', async () => {
  const clock = createManualClock();
  const batches: number[][] = [];
  let finish: () => void = () => undefined;
  const batcher = createBatcher<number, number>({
    itemsMax: 2,
    concurrency: 1,
    linger: { clock, lingerMs: 20, itemsEnough: 9 },
    run: async (items) => {
      batches.push(items);
      await new Promise<void>((resolve) => (finish = resolve));
      return items;
    },
  });
  batcher.hurry();
  const first = batcher.add(1);
  expect(batches).toEqual([]);
  batcher.hurry();
  expect(batches).toEqual([[1]]);
  const later = [2, 3, 4].map((item) => batcher.add(item));
  batcher.hurry();
  finish();
  await first;
  await expect.poll(() => batches.length).toBe(2);
  finish();
  await expect.poll(() => batches).toEqual([[1], [2, 3], [4]]);
  const last = batcher.add(5);
  finish();
  await Promise.all(later);
  await clock.whenWaiting(1);
  expect(batches).toHaveLength(3);
  clock.advance(20);
  finish();
  await last;
  expect(batches.at(-1)).toEqual([5]);
});
