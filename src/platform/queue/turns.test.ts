import { once, EventEmitter } from 'node:events';
import { setImmediate } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { silentLog } from '../log.ts';
import type { Database } from '../postgres/database.ts';
import { SliceOverError, startTurns, workInTurns } from './turns.ts';

let database: Database;
useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});

test('what takes longer than a slice goes on at the next place alone, while others have their turns at the first', async () => {
  const clock = createManualClock();
  const seen: [string, number | null][] = [];
  const events = new EventEmitter();
  const whenSeen = async (isSo: () => boolean) => {
    while (!isSo()) await once(events, 'turn');
  };
  let finish: () => void = () => undefined;
  const long = new Promise<void>((resolve) => {
    finish = resolve;
  });
  const left = new Map([
    ['a', 2],
    ['b', 3],
  ]);
  const turns = startTurns(
    { database, clock, log: silentLog },
    {
      name: 'checking domains',
      topic: 'domains',
      slicesMs: [10, null],
      organizationsMax: 1,
      find: (after) =>
        Promise.resolve(
          [...left].flatMap(([id, count]) => (count > 0 && id > (after ?? '') ? [id] : [])).slice(0, 1),
        ),
      work: async (id, { sliceMs }) => {
        seen.push([id, sliceMs]);
        events.emit('turn');
        if (id === 'a' && sliceMs !== null) throw new SliceOverError();
        if (id === 'a' && left.get('a') === 2) await long;
        left.set(id, (left.get(id) ?? 0) - 1);
        return 'more';
      },
    },
  );
  const of = (wanted: string) => seen.filter(([id]) => id === wanted).map(([, sliceMs]) => sliceMs);
  await whenSeen(() => of('b').length === 3 && of('a').includes(null));
  expect([of('a'), of('b')]).toEqual([
    [10, null],
    [10, 10, 10],
  ]);
  clock.advance(60_000);
  finish();
  // Its pieces are still long: it stays where it is.
  await whenSeen(() => of('a').length === 3);
  await turns.stop();
  expect([of('a'), left.get('a')]).toEqual([[10, null, null], 0]);
});

type Given = {
  /** What organizations have to do. */
  left: Map<string, string[]>;
  atOnceMax?: number;
  /** Does a piece. Where it throws, the piece is left. */
  work?: (piece: string, sliceMs: number | null) => Promise<void>;
};

/** Takes turns until nobody but these has anything left to do, and says whose turns they were. */
async function takeAll({ left, atOnceMax = 1, work }: Given, except: string[] = []): Promise<string[]> {
  const seen: string[] = [];
  const events = new EventEmitter();
  const turns = startTurns(
    { database, clock: createManualClock(), log: silentLog },
    {
      name: 'checking domains',
      topic: 'domains',
      slicesMs: [10, null],
      atOnceMax,
      organizationsMax: 100,
      find: (after, limit) => {
        const ids = [...left].flatMap(([id, pieces]) =>
          pieces.length > 0 && id > (after ?? '') ? [id] : [],
        );
        return Promise.resolve(ids.sort().slice(0, limit));
      },
      work: async (id, { sliceMs }) => {
        const pieces = left.get(id) ?? [];
        const [piece = ''] = pieces;
        seen.push(`${id} ${piece}${sliceMs === null ? ' without limit' : ''}`);
        try {
          await work?.(piece, sliceMs);
          pieces.shift();
        } finally {
          events.emit('turn');
        }
        return 'more';
      },
    },
  );
  while ([...left].some(([id, pieces]) => pieces.length > 0 && !except.includes(id)))
    await once(events, 'turn');
  await turns.stop();
  return seen;
}

test('of 250 organizations each has its first turn before any has its second', async () => {
  const ids = Array.from({ length: 250 }, (_, index) => `${1_000 + index}`);
  const seen = await takeAll({ left: new Map(ids.map((id) => [id, ['first', 'second']])) });
  expect(seen).toEqual(['first', 'second'].flatMap((piece) => ids.map((id) => `${id} ${piece}`)));
});

test('where nobody has anything to do there are no turns', async () => {
  expect(await takeAll({ left: new Map() })).toEqual([]);
});

test('a piece that fails keeps no other organization from its turns, and is not tried again at once', async () => {
  const left = new Map([
    ['a', ['bad']],
    ['b', ['1', '2', '3']],
  ]);
  const work = (piece: string) => (piece === 'bad' ? Promise.reject(new Error('bad')) : Promise.resolve());
  expect(await takeAll({ left, work }, ['a'])).toEqual(['a bad', 'b 1', 'b 2', 'b 3']);
});

test('an organization that waits long for somebody else keeps one of several turns from others, and no more', async () => {
  const left = new Map(['a', 'b', 'c', 'd'].map((id) => [id, [id]]));
  const work = async (piece: string) => {
    while (piece === 'a' && ['b', 'c', 'd'].some((id) => left.get(id)?.length !== 0)) await setImmediate();
  };
  expect(await takeAll({ left, work, atOnceMax: 2 })).toEqual(['a a', 'b b', 'c c', 'd d']);
});

test('a long piece is done although short ones come before it each time that it was given up', async () => {
  const left = new Map([['a', ['long']]]);
  let tries = 0;
  const work = (piece: string, sliceMs: number | null) => {
    if (piece === 'short' || sliceMs === null) return Promise.resolve();
    tries += 1;
    if (tries < 10) left.set('a', ['short', 'short', 'short', 'long']);
    else left.set('a', []);
    return Promise.reject(new SliceOverError());
  };
  const short = 'a short without limit';
  expect(await takeAll({ left, work })).toEqual(['a long', short, short, short, 'a long without limit']);
});

test('work in turns comes to all 250, leaves out what fails, and says so at the end', async () => {
  const left = new Map(Array.from({ length: 250 }, (_, index) => [index, 3]));
  const worked: number[] = [];
  const items = async function* () {
    for (const index of left.keys()) yield await Promise.resolve(index);
  };
  const working = workInTurns(
    items(),
    (index) => {
      worked.push(index);
      if (index === 7) return Promise.reject(new Error('7'));
      left.set(index, (left.get(index) ?? 0) - 1);
      return Promise.resolve((left.get(index) ?? 0) > 0);
    },
    new AbortController().signal,
  );
  await expect(working).rejects.toThrow(AggregateError);
  expect([...left].filter(([, count]) => count > 0)).toEqual([[7, 3]]);
  const all = [...left.keys()];
  const rest = all.filter((index) => index !== 7);
  expect(worked).toEqual([...all, ...rest, ...rest]);
});

test('work in turns ends when the database is away, and when it is told to', async () => {
  let worked = 0;
  const items = async function* () {
    for (let index = 0; index < 250; index += 1) yield await Promise.resolve(index);
  };
  const fail = () => {
    worked += 1;
    return Promise.reject(new Error('no connection'));
  };
  await expect(workInTurns(items(), fail, new AbortController().signal)).rejects.toThrow(AggregateError);
  expect(worked).toBe(10);
  const stopping = new AbortController();
  let until = 0;
  const stop = () => {
    until += 1;
    if (until === 300) stopping.abort();
    return Promise.resolve(true);
  };
  await workInTurns(items(), stop, stopping.signal);
  expect(until).toBe(300);
});
