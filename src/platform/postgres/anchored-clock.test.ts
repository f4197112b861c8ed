import { expect, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../../test/support/manual-clock.ts';
import { silentLog } from '../log.ts';
import { type AnchoredClock, startAnchoredClock } from './anchored-clock.ts';
import type { Connection } from './database.ts';

const startMs = Date.parse('2026-11-21T12:00:00.000Z');
const dayMs = 24 * 60 * 60_000;

type World = {
  base: ManualClock;
  clock: AnchoredClock;
  /** How far the database's clock is from what the time would be else, and how long each way takes. */
  server: { aheadMs: number; thereMs: number; backMs: number; isGone: boolean };
  rooms: string[];
};

/** The database's answer takes its time by the same clock that the test moves: a real one would not wait for it. */
async function startWorld(serverAheadMs = 0): Promise<World> {
  const base = createManualClock(startMs);
  const server = { aheadMs: serverAheadMs, thereMs: 0, backMs: 0, isGone: false };
  const database: Connection = {
    rows: <Row>() => {
      if (server.isGone) return Promise.reject(new Error('gone'));
      base.advance(server.thereMs);
      const answer = { ms: startMs + base.monotonicMs() - 1_000 + server.aheadMs };
      base.advance(server.backMs);
      return Promise.resolve([answer as Row]); // The one statement that is asked answers with this row.
    },
  };
  const rooms: string[] = [];
  const makeRoom = (at: Date) => {
    rooms.push(at.toISOString());
    return Promise.resolve();
  };
  const clock = await startAnchoredClock({ database, base, log: silentLog, makeRoom });
  return { base, clock, server, rooms };
}

/** What the time would be by the database's clock. */
function serverMs({ base, server }: World): number {
  return startMs + base.monotonicMs() - 1_000 + server.aheadMs;
}

test('the time is the database’s, whatever the wall clock says, and goes on by the monotonic clock', async () => {
  const world = await startWorld(-40 * dayMs);
  expect(world.clock.nowMs()).toBe(serverMs(world));
  world.base.setWallTime(startMs + 150 * dayMs);
  world.base.advance(1_234);
  expect(world.clock.nowMs()).toBe(serverMs(world));
  await world.clock.stop();
});

test('every half minute the database is asked again, also after it was away', async () => {
  const world = await startWorld();
  world.server.isGone = true;
  world.base.advance(30_000);
  await world.base.whenWaiting(1);
  world.server.isGone = false;
  world.server.aheadMs = 5_000;
  expect(world.clock.nowMs()).toBe(serverMs(world) - 5_000);
  world.base.advance(30_000);
  await world.base.whenWaiting(1);
  expect(world.clock.nowMs()).toBe(serverMs(world));
  await world.clock.stop();
});

test('an exchange that took long moves the time only as far as it must', async () => {
  const world = await startWorld();
  world.server.thereMs = 20_000;
  await world.clock.exchange();
  expect(world.clock.nowMs()).toBe(serverMs(world));
  world.server.thereMs = 0;
  world.server.backMs = 20_000;
  await world.clock.exchange();
  expect(world.clock.nowMs()).toBe(serverMs(world));
  world.server.aheadMs = 60_000;
  await world.clock.exchange();
  expect(world.clock.nowMs()).toBe(serverMs(world) - 20_000);
  await world.clock.stop();
});

test('room is made at the start, every day, and before a time that lies days away is adopted', async () => {
  const world = await startWorld();
  world.base.advance(60_000);
  await world.base.whenWaiting(1);
  expect(world.rooms).toEqual(['2026-11-21T12:00:00.000Z']);
  world.server.aheadMs = 150 * dayMs;
  await world.clock.exchange();
  world.server.aheadMs = 0;
  await world.clock.exchange();
  expect(world.rooms).toEqual([
    '2026-11-21T12:00:00.000Z',
    '2027-04-20T12:01:00.000Z',
    '2026-11-21T12:01:00.000Z',
  ]);
  world.base.advance(dayMs + 1);
  await world.base.whenWaiting(1);
  await world.clock.exchange();
  expect(world.rooms).toHaveLength(4);
  await world.clock.stop();
});

test('a clock that was stopped asks no more', async () => {
  const world = await startWorld();
  await world.clock.stop();
  world.server.aheadMs = 60_000;
  world.base.advance(10 * 60_000);
  expect(world.clock.nowMs()).toBe(serverMs(world) - 60_000);
});
