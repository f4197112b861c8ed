import { once, EventEmitter } from 'node:events';
import { expect, test } from 'vitest';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { silentLog } from '../log.ts';
import type { Database } from '../postgres/database.ts';
import { SliceOverError, startTurns } from './turns.ts';

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
