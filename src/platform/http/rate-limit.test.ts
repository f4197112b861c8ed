import { beforeEach, expect, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { dateOf } from '../clock.ts';
import { createIds } from '../ids.ts';
import { silentLog } from '../log.ts';
import { type Database, openDatabase, unpreparedStatement } from '../postgres/database.ts';
import { createRateLimiter, deleteOldRateWindows, type RateLimiter } from './rate-limit.ts';
import { createLocalRateLimiter } from './local-rate-limit.ts';

let database: Database;
let clock: ManualClock;
let subject: string;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});

beforeEach(() => {
  clock = createManualClock(Date.parse('2026-11-21T12:00:20.000Z'));
  subject = createIds(clock)();
});

function count(limiter: RateLimiter, times: number, limit = 10): number {
  const verdicts = Array.from({ length: times }, () => limiter.count(subject, 'requests', limit, 1));
  return verdicts.filter(({ isWithin }) => isWithin).length;
}

test('as many as the limit says are let through in a window, and each verdict says what is left', () => {
  const limiter = createRateLimiter({ database, clock, log: silentLog });
  expect(limiter.count(subject, 'requests', 3, 1)).toEqual({
    isWithin: true,
    limit: 3,
    remaining: 2,
    resetSeconds: 40,
  });
  expect(count(limiter, 10, 3)).toBe(2);
  clock.advance(39_001);
  expect(limiter.count(subject, 'requests', 3, 1)).toEqual({
    isWithin: false,
    limit: 3,
    remaining: 0,
    resetSeconds: 1,
  });
});

test.each([0, 0.25, 0.999, 1, 59_999.5])(
  'nobody is told to wait for longer than a window, %d ms into one',
  (intoMs) => {
    clock.advance(40_000 + intoMs);
    const { resetSeconds } = createRateLimiter({ database, clock, log: silentLog }).count(
      subject,
      'requests',
      1,
      1,
    );
    const local = createLocalRateLimiter({ clock }, { limit: 1, subjectsMax: 10 });
    const began = local.count('site').resetSeconds;
    clock.advance(59_999.5);
    for (const seconds of [resetSeconds, began, local.count('site').resetSeconds]) {
      expect(seconds).toBeGreaterThanOrEqual(1);
      expect(seconds).toBeLessThanOrEqual(60);
      expect(Number.isInteger(seconds)).toBe(true);
    }
  },
);

test('a new window begins with the minute, for all at once', () => {
  const limiter = createRateLimiter({ database, clock, log: silentLog });
  expect(count(limiter, 20)).toBe(10);
  clock.advance(39_999);
  expect(count(limiter, 1)).toBe(0);
  clock.advance(1);
  expect(limiter.count(subject, 'requests', 10, 1)).toMatchObject({ remaining: 9, resetSeconds: 60 });
});

test('kinds and subjects are counted apart', () => {
  const limiter = createRateLimiter({ database, clock, log: silentLog });
  expect(count(limiter, 20)).toBe(10);
  expect(limiter.count(subject, 'events', 10, 1).remaining).toBe(9);
  expect(limiter.count(createIds(clock)(), 'requests', 10, 1).remaining).toBe(9);
});

test('an amount counts as a whole or not at all', () => {
  const limiter = createRateLimiter({ database, clock, log: silentLog });
  expect(limiter.count(subject, 'events', 100, 60)).toMatchObject({ isWithin: true, remaining: 40 });
  expect(limiter.count(subject, 'events', 100, 41)).toMatchObject({ isWithin: false, remaining: 40 });
  expect(limiter.count(subject, 'events', 100, 40)).toMatchObject({ isWithin: true, remaining: 0 });
});

test('two nodes share a window: what one counted, the other knows after its next exchange', async () => {
  const [one, other] = [1, 2].map(() => createRateLimiter({ database, clock, log: silentLog }));
  expect(count(one!, 6)).toBe(6);
  await one!.flush();
  expect(count(other!, 1)).toBe(1);
  await other!.flush();
  expect(count(other!, 10)).toBe(3);
  await other!.flush();
  expect(count(one!, 10)).toBe(4);
  await one!.flush();
  // Four of one node and none of the other were let through too many: what it had not heard of yet.
  expect(count(one!, 10) + count(other!, 10)).toBe(0);
});

test('exchanges happen by themselves, each soon after something was counted', async () => {
  const limiter = createRateLimiter({ database, clock, log: silentLog });
  // Statements of one pool with one connection are carried out in turn; here they may need a few.
  const used = async () => {
    const [row] = await database.rows(
      unpreparedStatement<{ used: number }>('select used from rate_windows where subject = $1'),
      [subject],
    );
    return row?.used ?? 0;
  };
  let before = 0;
  for (const expected of [7, 9]) {
    expect(count(limiter, expected - before)).toBe(expected - before);
    expect(clock.countWaiting(), 'exchanges to come').toBe(1);
    clock.advance(100);
    for (let known = await used(); known !== expected; known = await used()) expect(known).toBe(before);
    before = expected;
  }
});

test('no request waits for the database, and none is refused for want of it', async () => {
  const away = openDatabase({ address: { url: 'postgres://127.0.0.1:1/nowhere' }, connectionsMax: 1 });
  const limiter = createRateLimiter({ database: away, clock, log: silentLog });
  expect(count(limiter, 20)).toBe(10);
  await expect(limiter.flush()).rejects.toThrow('no connection');
  clock.advance(1_000);
  expect(count(limiter, 20)).toBe(0);
  clock.advance(60_000);
  expect(count(limiter, 20)).toBe(10);
  await away.close();
});

test('what was counted while the database was away reaches the other nodes once it is back', async () => {
  let isAway = true;
  const flaky: Database = {
    ...database,
    rows: (...given) => (isAway ? Promise.reject(new Error('away')) : database.rows(...given)),
  };
  const limiter = createRateLimiter({ database: flaky, clock, log: silentLog });
  expect(count(limiter, 6)).toBe(6);
  await expect(limiter.flush()).rejects.toThrow('away');
  isAway = false;
  expect(count(limiter, 1)).toBe(1);
  await limiter.flush();
  const other = createRateLimiter({ database, clock, log: silentLog });
  expect(count(other, 1)).toBe(1);
  await other.flush();
  expect(count(other, 10)).toBe(2);
});

test('windows of the past are removed, and the present one is kept', async () => {
  const limiter = createRateLimiter({ database, clock, log: silentLog });
  count(limiter, 1);
  await limiter.flush();
  clock.advance(600_000);
  count(limiter, 1);
  await limiter.flush();
  await deleteOldRateWindows(database, dateOf(clock.nowMs() - 300_000));
  const rows = await database.rows(
    unpreparedStatement<{ window_start: Date }>('select window_start from rate_windows where subject = $1'),
    [subject],
  );
  expect(rows.map(({ window_start }) => window_start.toISOString())).toEqual(['2026-11-21T12:10:00.000Z']);
});
