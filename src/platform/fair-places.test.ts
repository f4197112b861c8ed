import { expect, test } from 'vitest';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { createFairPlaces } from './fair-places.ts';

const waitMaxMs = 3_000;

/** Takes places, and notes who was served in which order; `leave` gives back one that a holder has. */
function open(placesMax: number) {
  const clock = createManualClock();
  const places = createFairPlaces(clock, { placesMax, waitMaxMs });
  const served: (string | null)[] = [];
  const refused: (string | null)[] = [];
  const had = new Map<string | null, (() => void)[]>();
  const take = async (holder: string | null) => {
    const leave = await places.take(holder);
    if (leave === null) {
      refused.push(holder);
      return;
    }
    served.push(holder);
    had.set(holder, [...(had.get(holder) ?? []), leave]);
  };
  const settle = () => new Promise(setImmediate);
  return {
    clock,
    places,
    served,
    refused,
    ask: async (...holders: (string | null)[]) => {
      for (const holder of holders) void take(holder);
      await settle();
    },
    leave: async (holder: string | null) => {
      had.get(holder)?.shift()?.();
      await settle();
    },
    wait: async (ms: number) => {
      clock.advance(ms);
      await settle();
    },
  };
}

test('one place is left for others, whatever a holder asks for, and all of them for what serves all', async () => {
  const one = open(4);
  await one.ask('a', 'a', 'a', 'a', 'a');
  expect([one.served, one.places.waiting()]).toEqual([['a', 'a', 'a'], 2]);
  await one.ask('b');
  expect(one.served).toEqual(['a', 'a', 'a', 'b']);
  const all = open(4);
  await all.ask(null, null, null, null);
  expect(all.served).toHaveLength(4);
});

test('a single place is had by anybody', async () => {
  const { ask, leave, served } = open(1);
  await ask('a', 'b');
  expect(served).toEqual(['a']);
  await leave('a');
  expect(served).toEqual(['a', 'b']);
});

test('whoever has nothing comes first, then holders in turns, and each has its own in the order in which they came', async () => {
  const { ask, leave, served, places } = open(3);
  await ask('a', 'a', 'b');
  await ask('a', 'a', 'b', 'b', 'c');
  await leave('a');
  expect(served).toEqual(['a', 'a', 'b', 'c']);
  await leave('c');
  await leave('a');
  await leave('b');
  expect(served.slice(4)).toEqual(['a', 'b', 'a']);
  await leave('a');
  expect(served.slice(7)).toEqual(['b']);
  expect(places.waiting()).toBe(0);
});

test('a place that is given back serves no holder beyond its own limit', async () => {
  const { ask, leave, served } = open(3);
  await ask('a', 'a', 'b', 'a');
  await leave('b');
  expect(served).toEqual(['a', 'a', 'b']);
  await leave('a');
  expect(served).toEqual(['a', 'a', 'b', 'a']);
});

test('whoever waits too long gets none, and takes none from those who wait after it', async () => {
  const { ask, leave, served, refused, wait, places } = open(1);
  await ask('a', 'b');
  await wait(waitMaxMs - 1);
  await ask('c');
  expect(refused).toEqual([]);
  await wait(1);
  expect([refused, places.waiting()]).toEqual([['b'], 1]);
  await leave('a');
  expect(served).toEqual(['a', 'c']);
  await wait(waitMaxMs);
  expect(refused).toEqual(['b']);
});
