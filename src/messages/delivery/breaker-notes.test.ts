/** What a worker keeps of its breakers in the database. The clock stands still. */
import { beforeEach, expect, test } from 'vitest';
import { untried } from '../../../test/support/jobs.ts';
import { messageChannels } from '../../../test/support/channels.ts';
import { createManualClock, type ManualClock } from '../../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { type Log, silentLog } from '../../platform/log.ts';
import {
  type Database,
  DatabaseUnavailableError,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import type { Job } from '../channel.ts';
import { accountsMax, type Breakers, createBreakers, toldMs } from './breaker.ts';
import { lookMs, openBreakerNotes } from './breaker-notes.ts';

const epoch = 9;
const { email, push } = messageChannels;
let database: Database;
let clock: ManualClock;
let ended: AbortController;
/** Thrown instead of the next statement. */
let fault: Error | null;
let statements: number;
let warnings: number;
let waiting: { statements: number; resolve: () => void }[];

useTestDatabase({}, (opened) => {
  database = opened.database;
});
beforeEach(async () => {
  clock = createManualClock();
  ended = new AbortController();
  fault = null;
  statements = 0;
  warnings = 0;
  waiting = [];
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
    rows: async (statement, values) => {
      const thrown = fault;
      fault = null;
      try {
        if (thrown !== null) throw thrown;
        return await database.rows(statement, values);
      } finally {
        statements += 1;
        for (const each of waiting) if (each.statements <= statements) each.resolve();
      }
    },
  };
  const log: Log = { ...silentLog, warn: () => void (warnings += 1) };
  return openBreakerNotes({ database: faulty, clock, log }, epoch, ended.signal);
}

const jobOf = (organizationId: string) => ({ ...untried, organizationId }) as unknown as Job;

/** As many failures in a row as open it. */
function fail(breakers: Breakers, organizationId: string): void {
  for (let failures = 1; failures <= 5; failures += 1) breakers.of(jobOf(organizationId)).note(true);
}

/** When so many statements have ended. */
const whenWritten = (count: number) =>
  statements >= count
    ? Promise.resolve()
    : new Promise<void>((resolve) => {
        waiting.push({ statements: count, resolve });
      });

test('a provider is noted with the time at which its breaker opened, until it closes', async () => {
  const breakers = createBreakers(clock, null);
  const noted = { channel: email, provider: 'smtp', breakers };
  const notes = open();
  const openedAt = new Date(clock.nowMs());
  fail(breakers, 'a');
  notes.noteChange(noted);
  await whenWritten(1);
  expect(await listed()).toEqual([
    { channel: 'email', provider: 'smtp', accounts: null, opened_at: openedAt },
  ]);
  // A probe that fails opens it once more.
  notes.noteChange(noted);
  clock.advance(1_000);
  await whenWritten(2);
  expect(await listed()).toMatchObject([{ opened_at: openedAt }]);
  breakers.of(jobOf('a')).note(false);
  notes.noteChange(noted);
  clock.advance(1_000);
  await whenWritten(3);
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
  await whenWritten(1);
  await listed();
  expect(statements).toBe(1);
  for (let account = 1; account <= 100; account += 1) {
    breakers.of(jobOf(`${account}`)).note(false);
    notes.noteChange(noted);
  }
  clock.advance(1_000);
  await whenWritten(2);
  expect(await listed()).toMatchObject([{ channel: 'push', accounts: 150 }]);
  expect(statements).toBe(2);
  ended.abort();
});

test('what cannot be written is written once the database is back, and nothing of a worker that was buried', async () => {
  const breakers = createBreakers(clock, null);
  const noted = { channel: email, provider: 'smtp', breakers };
  const notes = open();
  fail(breakers, 'a');
  fault = new DatabaseUnavailableError('away');
  notes.noteChange(noted);
  await whenWritten(1);
  expect(await listed()).toEqual([]);
  clock.advance(1_000);
  await whenWritten(2);
  expect(await listed()).toHaveLength(1);
  await run('delete from workers where epoch = $1', [epoch]);
  expect(await listed()).toEqual([]);
  notes.noteChange(noted);
  clock.advance(1_000);
  await whenWritten(3);
  expect(await listed()).toEqual([]);
  ended.abort();
});

test('what fails again and again is logged once, until it could be written', async () => {
  const breakers = createBreakers(clock, null);
  const noted = { channel: email, provider: 'smtp', breakers };
  const notes = open();
  fail(breakers, 'a');
  const logged: number[] = [];
  for (const [index, isFaulty] of [true, true, false, true].entries()) {
    fault = isFaulty ? new Error('permission denied') : null;
    notes.noteChange(noted);
    clock.advance(1_000);
    await whenWritten(index + 1);
    await listed();
    logged.push(warnings);
  }
  expect(logged).toEqual([1, 1, 1, 2]);
  ended.abort();
});

test('what nobody tries any more is told until no message can be waiting for it', async () => {
  const breakers = createBreakers(clock, ({ organizationId }) => organizationId);
  const notes = open();
  fail(breakers, 'a');
  notes.noteChange({ channel: push, provider: 'direct', breakers });
  await whenWritten(1);
  await listed();
  clock.advance(lookMs);
  await whenWritten(2);
  expect(await listed()).toMatchObject([{ accounts: 1 }]);
  clock.advance(toldMs);
  await whenWritten(3);
  expect(await listed()).toEqual([]);
  // Nothing is open, so nothing is looked at.
  clock.advance(toldMs);
  await listed();
  expect(statements).toBe(3);
  ended.abort();
});

test('an account that was forgotten for others is told no more', async () => {
  const breakers = createBreakers(clock, ({ organizationId }) => organizationId);
  const notes = open();
  fail(breakers, 'a');
  notes.noteChange({ channel: push, provider: 'direct', breakers });
  await whenWritten(1);
  expect(await listed()).toHaveLength(1);
  for (let account = 1; account <= accountsMax; account += 1) breakers.of(jobOf(`${account}`));
  clock.advance(lookMs);
  await whenWritten(2);
  expect(await listed()).toEqual([]);
  ended.abort();
});
