/** What a worker keeps of its breakers in the database. The clock stands still. */
import { beforeEach, expect, test } from 'vitest';
import { untried } from '../../../test/support/jobs.ts';
import { messageChannels } from '../../../test/support/channels.ts';
import { createManualClock, type ManualClock } from '../../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { silentLog } from '../../platform/log.ts';
import {
  type Database,
  DatabaseUnavailableError,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import type { Job } from '../channel.ts';
import { type Breakers, createBreakers } from './breaker.ts';
import { openBreakerNotes } from './breaker-notes.ts';

const epoch = 9;
const { email, push } = messageChannels;
let database: Database;
let clock: ManualClock;
let ended: AbortController;
/** Thrown instead of the next statement. */
let fault: Error | null;
let statements: number;

useTestDatabase({}, (opened) => {
  database = opened.database;
});
beforeEach(async () => {
  clock = createManualClock();
  ended = new AbortController();
  fault = null;
  statements = 0;
  await run('truncate workers cascade');
  await run("insert into workers (epoch, host, pid, started_at) values ($1, 'here', 1, now())", [epoch]);
});

function run(text: string, values: readonly unknown[] = []): Promise<unknown[]> {
  return database.rows(unpreparedStatement(text), values);
}

const listed = () =>
  run('select channel, provider, accounts, opened_at from open_breakers where epoch = $1 order by channel', [
    epoch,
  ]);

function open() {
  const faulty: Database = {
    ...database,
    rows: (statement, values) => {
      statements += 1;
      const thrown = fault;
      fault = null;
      return thrown === null ? database.rows(statement, values) : Promise.reject(thrown);
    },
  };
  return openBreakerNotes({ database: faulty, clock, log: silentLog }, epoch, ended.signal);
}

const jobOf = (organizationId: string) => ({ ...untried, organizationId }) as unknown as Job;

/** As many failures in a row as open it. */
function fail(breakers: Breakers, organizationId: string): void {
  for (let failures = 1; failures <= 5; failures += 1) breakers.of(jobOf(organizationId)).note(true);
}

const passSecond = async () => {
  await clock.whenWaiting(1);
  clock.advance(1_000);
};

test('a provider is noted with the time at which its breaker opened, until it closes', async () => {
  const breakers = createBreakers(clock, null);
  const noted = { channel: email, provider: 'smtp', breakers };
  const notes = open();
  const openedAt = new Date(clock.nowMs());
  fail(breakers, 'a');
  notes.noteChange(noted);
  await clock.whenWaiting(1);
  expect(await listed()).toEqual([
    { channel: 'email', provider: 'smtp', accounts: null, opened_at: openedAt },
  ]);
  // A probe that fails opens it once more.
  notes.noteChange(noted);
  await passSecond();
  await clock.whenWaiting(1);
  expect(await listed()).toMatchObject([{ opened_at: openedAt }]);
  breakers.of(jobOf('a')).note(false);
  notes.noteChange(noted);
  await passSecond();
  await clock.whenWaiting(1);
  expect(await listed()).toEqual([]);
  ended.abort();
});

test('accounts are counted, however many open and close, by a write a second', async () => {
  const breakers = createBreakers(clock, ({ organizationId }) => organizationId);
  const noted = { channel: push, provider: 'direct', breakers };
  const notes = open();
  for (let account = 1; account <= 250; account += 1) {
    fail(breakers, `${account}`);
    notes.noteChange(noted);
  }
  await clock.whenWaiting(1);
  expect(statements).toBe(1);
  for (let account = 1; account <= 100; account += 1) {
    breakers.of(jobOf(`${account}`)).note(false);
    notes.noteChange(noted);
  }
  await passSecond();
  await clock.whenWaiting(1);
  expect(statements).toBe(2);
  expect(await listed()).toMatchObject([{ channel: 'push', accounts: 150 }]);
  ended.abort();
});

test('what cannot be written is written once the database is back, and nothing of a worker that was buried', async () => {
  const breakers = createBreakers(clock, null);
  const noted = { channel: email, provider: 'smtp', breakers };
  const notes = open();
  fail(breakers, 'a');
  fault = new DatabaseUnavailableError('away');
  notes.noteChange(noted);
  await clock.whenWaiting(1);
  expect(await listed()).toEqual([]);
  await passSecond();
  await clock.whenWaiting(1);
  expect(await listed()).toHaveLength(1);
  await run('delete from workers where epoch = $1', [epoch]);
  expect(await listed()).toEqual([]);
  notes.noteChange(noted);
  await passSecond();
  await clock.whenWaiting(1);
  expect(await listed()).toEqual([]);
  ended.abort();
});
