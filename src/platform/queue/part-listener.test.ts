import { expect, test } from 'vitest';
import { eventually } from '../../../test/support/email-journey.ts';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { silentLog } from '../log.ts';
import { type Database, unpreparedStatement } from '../postgres/database.ts';
import { createPartListener, type WaitForWake } from './part-listener.ts';
import { wakeOnce } from './wake.ts';

let database: Database;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});

const listListeners = () =>
  database.rows(
    unpreparedStatement<{ pid: number }>(
      `select pid from pg_stat_activity
       where datname = current_database() and application_name = 'postillion-listener'`,
    ),
  );

function open() {
  const clock = createManualClock();
  const listener = createPartListener({ database, clock, log: silentLog }, 'domain_checks');
  /** Waits for the wakes of a part until it is told to leave; the first one is that the listener has begun to hear. */
  const enter = async (part: string) => {
    let leave: () => void = () => undefined;
    const left = new Promise<void>((resolve) => (leave = resolve));
    let waitAgain: WaitForWake | undefined;
    const over = listener.whileHearing(part, async (wait) => {
      waitAgain = wait;
      await left;
    });
    const wait = () => waitAgain!(60_000);
    return { wait, leave: () => (leave(), over) };
  };
  return { clock, enter };
}

test('each hears of its own part, over one connection for all, which is open while anybody waits', async () => {
  expect(await listListeners()).toEqual([]);
  const { clock, enter } = open();
  const [first, twin, other] = [await enter('a'), await enter('a'), await enter('b')];
  await Promise.all([first.wait(), twin.wait(), other.wait()]);
  expect(await listListeners()).toHaveLength(1);
  const others = other.wait();
  const both = Promise.all([first.wait(), twin.wait()]);
  await wakeOnce(database, 'domain_checks', 'a');
  expect(await both).toEqual([false, false]);
  clock.advance(60_000);
  expect(await others).toBe(true);
  await first.leave();
  const again = twin.wait();
  await wakeOnce(database, 'domain_checks', 'a');
  expect(await again).toBe(false);
  expect(await listListeners()).toHaveLength(1);
  await Promise.all([twin.leave(), other.leave()]);
  await eventually(listListeners, (listeners) => listeners.length === 0);
});

test('what was notified while the connection was lost is looked for by everybody', async () => {
  const { clock, enter } = open();
  const waiting = [await enter('a'), await enter('b')];
  await Promise.all(waiting.map(({ wait }) => wait()));
  const [listener] = await listListeners();
  const next = Promise.all(waiting.map(({ wait }) => wait()));
  await database.rows(unpreparedStatement('select pg_terminate_backend($1)'), [listener!.pid]);
  await wakeOnce(database, 'domain_checks', 'a');
  // Both wait, and the next attempt to connect.
  await clock.whenWaiting(3);
  clock.advance(500);
  expect(await next).toEqual([false, false]);
  await Promise.all(waiting.map(({ leave }) => leave()));
  await eventually(listListeners, (listeners) => listeners.length === 0);
});

test('who comes after everybody has left is heard for again', async () => {
  const { enter } = open();
  for (let times = 0; times < 2; times += 1) {
    const waiting = await enter('a');
    expect(await waiting.wait()).toBe(false);
    const next = waiting.wait();
    await wakeOnce(database, 'domain_checks', 'a');
    expect(await next).toBe(false);
    await waiting.leave();
  }
  await eventually(listListeners, (listeners) => listeners.length === 0);
});
