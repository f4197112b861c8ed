import { beforeEach, describe, expect, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { deleteExpiredSuppressions } from '../audience/audience.ts';
import { deleteOldProviderIds, deleteOldReputation } from '../messages/messages.ts';
import { dateOf } from '../platform/clock.ts';
import { deleteExpiredKeys } from '../platform/http/idempotency.ts';
import { deleteOldRateWindows } from '../platform/http/rate-limit.ts';
import { createIds } from '../platform/ids.ts';
import { silentLog } from '../platform/log.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { deleteOldSandboxMessages } from '../sandbox/store.ts';
import { startHousekeeping } from './housekeeping.ts';

const start = Date.parse('2026-11-21T12:00:00.000Z');
const oldAt = dateOf(start - 40 * 24 * 3_600_000);
const newAt = dateOf(start - 60_000);

let database: Database;
let clock: ManualClock;
let interrupted: unknown[];

useTestDatabase({ connectionsMax: 2, isForEachTest: true }, (opened) => {
  database = opened.database;
});
beforeEach(() => {
  clock = createManualClock(start);
  interrupted = [];
});

const run = (text: string, values: readonly unknown[] = []) =>
  database.rows(unpreparedStatement<Record<string, unknown>>(text), values);

/** Rows of two organizations in turns, `count` of them, made at that time. */
const inserts: Readonly<Record<string, string>> = {
  idempotency_keys: `insert into idempotency_keys
       (organization_id, endpoint, key, fingerprint, status_code, response, created_at)
     select ($3::uuid[])[1 + n % 2], 'POST /v1/email/send', $1::timestamptz || ' ' || n, sha256(''), 202, '{}', $1
     from generate_series(1, $2::integer) n`,
  suppressions: `insert into suppressions
       (organization_id, id, channel, address_hash, reason, source_type, created_at, expires_at)
     select ($3::uuid[])[1 + n % 2], gen_random_uuid(), 'email', sha256(convert_to($1::timestamptz || ' ' || n, 'UTF8')),
       'manual', 'api_key', $1, $1::timestamptz + interval '1 day'
     from generate_series(1, $2::integer) n`,
  rate_windows: `insert into rate_windows (subject, kind, window_start, used)
     select ($3::uuid[])[1 + n % 2], 'kind ' || n, $1, 1 from generate_series(1, $2::integer) n`,
  reputation_counts: `insert into reputation_counts (organization_id, hour, shard, sent, bounced, complained)
     select ($3::uuid[])[1 + n % 2], $1, n, 1, 0, 0 from generate_series(1, $2::integer) n`,
  provider_ids: `insert into provider_ids
       (channel, provider_message_id, organization_id, message_id, ordinal, created_at)
     select 'sms', $1::timestamptz || ' ' || n, ($3::uuid[])[1 + n % 2], gen_random_uuid(), 0, $1
     from generate_series(1, $2::integer) n`,
};
const tables = Object.keys(inserts);

async function insertRows(table: string, at: Date, count: number): Promise<void> {
  const newId = createIds(clock);
  await run(inserts[table]!, [at, count, [newId(), newId()]]);
}

const countRows = async (table: string) => (await run(`select from ${table}`)).length;

/** The database, and how many rows each statement returned. */
function watch() {
  const deletedByStatement: number[] = [];
  const watched: Database = {
    ...database,
    rows: async (statement, values) => {
      const rows = await database.rows(statement, values);
      deletedByStatement.push(rows.length);
      return rows;
    },
  };
  return { watched, deletedByStatement };
}

const config = { keptDays: { messages: null, content: null }, partitionSize: 'month' } as const;

/** One run of it, from its beginning to its end. */
async function keepHouse(): Promise<void> {
  const log = {
    ...silentLog,
    warn: (context: unknown) => {
      interrupted.push((context as { step: string }).step);
    },
  };
  const housekeeping = startHousekeeping({ database, clock, log, config });
  clock.advance(30_000);
  await clock.whenWaiting(1);
  await housekeeping.stop();
}

test('what is old is deleted of every organization, and what is not is kept', async () => {
  for (const table of tables) {
    await insertRows(table, oldAt, 4);
    await insertRows(table, newAt, 3);
  }
  await keepHouse();
  expect(interrupted).toEqual([]);
  for (const table of tables) expect([table, await countRows(table)]).toEqual([table, 3]);
});

/** For how long each is needed: while a key protects, a receipt may come, a count is of the last day. */
const neededMs: Readonly<Record<string, number>> = {
  idempotency_keys: 24 * 3_600_000,
  suppressions: 24 * 3_600_000,
  rate_windows: 2 * 60_000,
  // A row is of an hour, which may have begun before the day did.
  reputation_counts: 25 * 3_600_000,
  provider_ids: 8 * 24 * 3_600_000,
};

test('what is needed for a minute longer is kept', async () => {
  for (const table of tables) await insertRows(table, dateOf(start - neededMs[table]! + 60_000), 3);
  await keepHouse();
  for (const table of tables) expect([table, await countRows(table)]).toEqual([table, 3]);
});

test('mail to the postmaster is deleted after 90 days', async () => {
  const keepAt = (ms: number) =>
    run(
      `insert into postmaster_mail (id, kind, recipient, digest, source, is_cut)
       values ($1::uuid, 'mail', 'postmaster@bounces.example.test', sha256($1::uuid::text::bytea), '', false)`,
      [createIds({ ...clock, nowMs: () => ms })()],
    );
  const limit = start - 90 * 24 * 3_600_000;
  await keepAt(limit - 60_000);
  await keepAt(limit + 60_000);
  await keepHouse();
  expect(interrupted).toEqual([]);
  expect(await countRows('postmaster_mail')).toBe(1);
});

test('the row of a deleted organization goes after an hour, and nothing of one that is not deleted yet', async () => {
  const insert = (name: string, deletion: string | null, at: number) =>
    run(
      `insert into organizations (id, name, deletion, created_at, updated_at)
       values (gen_random_uuid(), $1, $2, $3, $3)`,
      [name, deletion, dateOf(at)],
    );
  const hourAgo = start - 3_600_000;
  await insert('gone for long', 'gone', hourAgo - 1);
  await insert('gone lately', 'gone', hourAgo + 60_000);
  await insert('under way', 'under_way', oldAt.getTime());
  await insert('requested', 'requested', oldAt.getTime());
  await insert('in service', null, oldAt.getTime());
  await keepHouse();
  expect(interrupted).toEqual([]);
  const left = await run('select name from organizations order by name');
  expect(left.map(({ name }) => name)).toEqual(['gone lately', 'in service', 'requested', 'under way']);
});

describe('a step that fails keeps no other from its turn, and is named in the log', () => {
  test.each([
    ['idempotency_keys', 'idempotency keys'],
    ['suppressions', 'suppressions'],
    ['rate_windows', 'rate windows'],
    ['reputation_counts', 'reputation'],
    ['provider_ids', "providers' ids"],
  ])('%s', async (broken, step) => {
    for (const table of tables) await insertRows(table, oldAt, 4);
    await run(
      `create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$`,
    );
    await run(`create trigger refuse before delete on ${broken} execute function refuse()`);
    await keepHouse();
    expect(interrupted).toEqual([step]);
    for (const table of tables) {
      expect([table, await countRows(table)]).toEqual([table, table === broken ? 4 : 0]);
    }
  });

  test('partitions', async () => {
    for (const table of tables) await insertRows(table, oldAt, 4);
    await run('alter procedure create_partitions rename to gone');
    await keepHouse();
    expect(interrupted).toEqual(['partitions']);
    for (const table of tables) expect([table, await countRows(table)]).toEqual([table, 0]);
  });
});

test('it comes again an hour after it was over, and not once it was stopped', async () => {
  const housekeeping = startHousekeeping({ database, clock, log: silentLog, config });
  clock.advance(30_000);
  await clock.whenWaiting(1);
  await insertRows('rate_windows', oldAt, 4);
  clock.advance(3_599_999);
  expect(await countRows('rate_windows')).toBe(4);
  clock.advance(1);
  await clock.whenWaiting(1);
  expect(await countRows('rate_windows')).toBe(0);
  await housekeeping.stop();
  await insertRows('rate_windows', oldAt, 4);
  clock.advance(7_200_000);
  expect(await countRows('rate_windows')).toBe(4);
});

/** A database at which a statement with this in its text waits until it is let go. */
function holdAt(text: string) {
  let reach = (): void => undefined;
  const reached = new Promise<void>((resolve) => {
    reach = resolve;
  });
  let letGo = (): void => undefined;
  const released = new Promise<void>((resolve) => {
    letGo = resolve;
  });
  const held: Database = {
    ...database,
    rows: async (statement, values) => {
      if (statement.text.includes(text)) {
        reach();
        await released;
      }
      return database.rows(statement, values);
    },
  };
  return { held, reached, letGo: () => letGo() };
}

test('a process that stops waits for the step under way, begins none after it, and leaves no timer', async () => {
  for (const table of tables) await insertRows(table, oldAt, 4);
  const { held, reached, letGo } = holdAt('idempotency_keys');
  const housekeeping = startHousekeeping({ database: held, clock, log: silentLog, config });
  clock.advance(30_000);
  await reached;
  let hasStopped = false;
  const stopped = housekeeping.stop().then(() => {
    hasStopped = true;
  });
  await Promise.resolve();
  expect(hasStopped).toBe(false);
  letGo();
  await stopped;
  expect(await countRows('idempotency_keys')).toBe(0);
  expect(await countRows('rate_windows')).toBe(4);
  expect(clock.countWaiting()).toBe(0);
});

test('a process that stops during the last step leaves no timer', async () => {
  const { held, reached, letGo } = holdAt('events_kept_days');
  const housekeeping = startHousekeeping({ database: held, clock, log: silentLog, config });
  clock.advance(30_000);
  await reached;
  const stopped = housekeeping.stop();
  letGo();
  await stopped;
  expect(clock.countWaiting()).toBe(0);
});

describe('twice as many old rows as a statement deletes, and one more, are all deleted', () => {
  const deletions: Readonly<Record<string, (by: Database, rowsMax: number) => Promise<void>>> = {
    idempotency_keys: (by, rowsMax) => deleteExpiredKeys(by, dateOf(start - 86_400_000), rowsMax),
    suppressions: (by, rowsMax) => deleteExpiredSuppressions(by, dateOf(start), rowsMax),
    rate_windows: (by, rowsMax) => deleteOldRateWindows(by, dateOf(start - 600_000), rowsMax),
    reputation_counts: (by, rowsMax) => deleteOldReputation(by, start, rowsMax),
    provider_ids: (by, rowsMax) => deleteOldProviderIds(by, dateOf(start - 86_400_000), rowsMax),
  };

  test.each(tables)('%s', async (table) => {
    await insertRows(table, oldAt, 5);
    await insertRows(table, newAt, 1);
    const { watched, deletedByStatement } = watch();
    await deletions[table]!(watched, 2);
    expect(deletedByStatement).toEqual([2, 2, 1]);
    expect(await countRows(table)).toBe(1);
  });

  test('sandbox_messages, but for the newest', async () => {
    const newId = createIds(clock);
    await run(
      `insert into sandbox_messages
         (organization_id, id, channel, message_id, ordinal, recipient, sender, outcome, source, created_at)
       select ($1::uuid[])[1 + n % 2], id, 'email', id, 0, 'ann@example.com', 'shop@example.com', 'delivered', '', $3
       from unnest($2::uuid[]) with ordinality as made (id, n)`,
      [[newId(), newId()], Array.from({ length: 8 }, newId), oldAt],
    );
    const ids = async () =>
      (await run('select id from sandbox_messages order by id desc')).map(({ id }) => id);
    const newest = (await ids()).slice(0, 3);
    const { watched, deletedByStatement } = watch();
    await deleteOldSandboxMessages(watched, 2, 2);
    expect(deletedByStatement).toEqual([2, 2, 1]);
    expect(await ids()).toEqual(newest);
  });
});
