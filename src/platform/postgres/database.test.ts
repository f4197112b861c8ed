import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { clientConfigOf, useTestDatabase } from '../../../test/support/test-database.ts';
import { createIds } from '../ids.ts';
import {
  type Connection,
  type Database,
  type DatabaseAddress,
  DatabaseUnavailableError,
  openDatabase,
  sqlState,
  statement,
  uniqueViolation,
  unpreparedStatement,
} from './database.ts';

let address: DatabaseAddress;
let database: Database;
/** A connection of its own, to look on and to interfere. */
let observer: pg.Client;

const newId = createIds(createManualClock());

useTestDatabase({ connectionsMax: 3 }, (opened) => {
  address = opened.address;
  database = opened.database;
});
beforeAll(async () => {
  observer = new pg.Client(clientConfigOf(address));
  await observer.connect();
  await observer.query('create table marks (text text primary key)');
});

afterAll(async () => {
  await observer.end();
});

const insertMark = statement('test_insert_mark', 'insert into marks (text) values ($1)');

async function listMarks(): Promise<string[]> {
  const { rows } = await observer.query<{ text: string }>('select text from marks order by text');
  await observer.query('delete from marks');
  return rows.map(({ text }) => text);
}

/** Ends every backend of that name, and waits until they are gone. */
async function terminate(applicationName: string): Promise<void> {
  await observer.query(
    'select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = current_database() and application_name = $1',
    [applicationName],
  );
}

async function connectionsOf(applicationName: string): Promise<{ state: string }[]> {
  const { rows } = await observer.query<{ state: string }>(
    'select state from pg_stat_activity where datname = current_database() and application_name = $1',
    [applicationName],
  );
  return rows;
}

/** A backend ends a moment after its client has closed the connection. */
async function whenGone(applicationName: string): Promise<void> {
  for (let isGone = false; !isGone;) isGone = (await connectionsOf(applicationName)).length === 0;
}

test('what a transaction did is there once it has ended, and not before', async () => {
  const result = await database.transaction(async (transaction) => {
    await transaction.rows(insertMark, ['a']);
    await transaction.rows(insertMark, ['b']);
    expect((await observer.query('select from marks')).rowCount).toBe(0);
    return 'the result';
  });
  expect(result).toBe('the result');
  expect(await listMarks()).toEqual(['a', 'b']);
});

test('whatever a transaction throws rolls back all of it and comes out as it was thrown', async () => {
  const cause = new TypeError('changed its mind');
  const failed = database.transaction(async (transaction) => {
    await transaction.rows(insertMark, ['a']);
    throw cause;
  });
  await expect(failed).rejects.toBe(cause);
  expect(await listMarks()).toEqual([]);
});

const insertions: Readonly<Record<string, (own: Database) => Promise<unknown>>> = {
  'a statement': (own) => own.rows(insertMark, ['a']),
  'a transaction': (own) => own.transaction((transaction) => transaction.rows(insertMark, ['a'])),
  'statements together': (own) => own.together(null, [{ statement: insertMark, values: ['a'] }]),
};

test.each(Object.entries(insertions))(
  'to %s a server that takes no writes is away, and the next connection may lead to another',
  async (_way, insert) => {
    const { rows } = await observer.query<{ name: string }>('select current_database() as name');
    const own = openDatabase({ address, connectionsMax: 1 });
    try {
      await observer.query(`alter database ${rows[0]!.name} set default_transaction_read_only = on`);
      await expect(insert(own)).rejects.toThrow(DatabaseUnavailableError);
      // What its one connection began with stays, so that only another one can write.
      await observer.query(`alter database ${rows[0]!.name} reset default_transaction_read_only`);
      await insert(own);
    } finally {
      await observer.query(`alter database ${rows[0]!.name} reset default_transaction_read_only`);
      await own.close();
    }
    expect(await listMarks()).toEqual(['a']);
  },
);

/** As PostgreSQL says it of a disk that has no room for a larger file. */
const outOfSpace = "raise exception 'could not extend file: No space left on device' using errcode = '53100'";

test('a full disk is known once a statement has failed for it, until there is room again', async () => {
  const own = openDatabase({ address, connectionsMax: 2 });
  const fill = async () => {
    await observer.query(`
      create function refuse_rows() returns trigger language plpgsql as $$ begin ${outOfSpace}; end $$;
      create trigger full_disk before insert on marks for each statement execute function refuse_rows();
      create function refuse_tables() returns event_trigger language plpgsql as $$ begin ${outOfSpace}; end $$;
      create event trigger full_disk on ddl_command_start when tag in ('CREATE TABLE AS')
        execute function refuse_tables()`);
  };
  try {
    expect(await own.isOutOfSpace()).toBe(false);
    await fill();
    // Nobody has noticed, and nobody asks.
    expect(await own.isOutOfSpace()).toBe(false);
    for (const insert of Object.values(insertions)) {
      await expect(insert(own)).rejects.toThrow(DatabaseUnavailableError);
      expect(await own.isOutOfSpace()).toBe(true);
    }
    await observer.query('drop event trigger full_disk; drop trigger full_disk on marks');
    expect(await own.isOutOfSpace()).toBe(false);
    await own.rows(insertMark, ['a']);
    expect(await own.isOutOfSpace()).toBe(false);
    await observer.query('truncate marks');
  } finally {
    await observer.query(`
      drop event trigger if exists full_disk;
      drop trigger if exists full_disk on marks;
      drop function if exists refuse_rows, refuse_tables`);
    await own.close();
  }
  // The trial leaves nothing.
  const { rows: left } = await observer.query("select from pg_class where relname = 'postillion_space'");
  expect(left).toEqual([]);
});

test('a commit that is sent with the last statements commits them', async () => {
  await database.transaction(async (transaction) => {
    await Promise.all([
      transaction.rows(insertMark, ['a']),
      transaction.rows(insertMark, ['b']),
      transaction.commit(),
    ]);
    expect((await observer.query('select from marks')).rowCount).toBe(2);
  });
  expect(await listMarks()).toEqual(['a', 'b']);
});

test('a commit fails with the statement that was sent before it, and nothing of either is kept', async () => {
  const failed = database.transaction(async (transaction) => {
    await Promise.all([
      transaction.rows(insertMark, ['a']),
      transaction.rows(insertMark, ['a']),
      transaction.rows(insertMark, ['b']),
      transaction.commit(),
    ]);
  });
  await expect(failed).rejects.toSatisfy((cause) => sqlState(cause) === uniqueViolation);
  expect(await listMarks()).toEqual([]);
});

test('a transaction in which a statement failed never passes for committed, even if no caller looked', async () => {
  const failed = database.transaction(async (transaction) => {
    await transaction.rows(unpreparedStatement('select 1 / 0')).catch(() => undefined);
    return 'fine';
  });
  await expect(failed).rejects.toThrow('division by zero');
});

test('after an error the same connection serves the next one', async () => {
  const single = openDatabase({ address, connectionsMax: 1 });
  const pidOf = async () =>
    (await single.rows(unpreparedStatement<{ pid: number }>('select pg_backend_pid() as pid')))[0]!.pid;
  const pid = await pidOf();
  await expect(single.rows(unpreparedStatement('select nonsense'))).rejects.toThrow('nonsense');
  await expect(single.transaction(() => Promise.reject(new Error('no')))).rejects.toThrow('no');
  await expect(
    single.transaction((transaction) => transaction.rows(unpreparedStatement('select 1 / 0'))),
  ).rejects.toThrow('division by zero');
  expect(await pidOf()).toBe(pid);
  await single.close();
});

/** An organization with a counted use of its quota, written past the wall. */
async function createTenant(used: number): Promise<string> {
  const id = newId();
  await observer.query(
    "insert into organizations (id, name, created_at, updated_at) values ($1, 'T', now(), now())",
    [id],
  );
  await observer.query("insert into quota_usage values ($1, 'email', '2026-11-01', 1, $2)", [id, used]);
  return id;
}

const usageOfEverybody = unpreparedStatement<{ organization_id: string; used: number }>(
  'select organization_id, used from quota_usage order by used',
);

test('inside the wall a statement that names no organization sees and changes only the rows of its own', async () => {
  const [mine, also, other] = [await createTenant(1), await createTenant(2), await createTenant(3)];
  const seen = await database.asOrganizations([mine, also], async (transaction) => {
    const rows = await transaction.rows(usageOfEverybody);
    await transaction.rows(unpreparedStatement('update quota_usage set used = used + 10'));
    return rows;
  });
  expect(seen).toEqual([
    { organization_id: mine, used: 1 },
    { organization_id: also, used: 2 },
  ]);
  await database.asOrganizations([mine], (transaction) =>
    transaction.rows(unpreparedStatement('delete from quota_usage')),
  );
  expect(await database.rows(usageOfEverybody)).toEqual([
    { organization_id: other, used: 3 },
    { organization_id: also, used: 12 },
  ]);
  await observer.query('delete from quota_usage');
});

test('inside the wall nothing can be written for another organization, or moved to one', async () => {
  const [mine, other] = [await createTenant(1), await createTenant(2)];
  const asMine = (text: string) =>
    database.asOrganizations([mine], (transaction) => transaction.rows(unpreparedStatement(text)));
  await expect(
    asMine(`insert into quota_usage values ('${other}', 'sms', '2026-11-01', 1, 1)`),
  ).rejects.toThrow('row-level security');
  await expect(asMine(`update quota_usage set organization_id = '${other}', shard = 9`)).rejects.toThrow(
    'row-level security',
  );
  await observer.query('delete from quota_usage');
});

test('for no organization at all nothing is seen', async () => {
  await createTenant(1);
  expect(await database.asOrganizations([], (transaction) => transaction.rows(usageOfEverybody))).toEqual([]);
  await observer.query('delete from quota_usage');
});

test('a part of a transaction is held to the organizations that it is for, and what follows is not', async () => {
  const [mine, other] = [await createTenant(1), await createTenant(2)];
  const single = openDatabase({ address, connectionsMax: 1 });
  const idsOf = (rows: { organization_id: string }[]) => rows.map((row) => row.organization_id);
  const seen = await single.transaction(async (transaction) => {
    const all = idsOf(await transaction.rows(usageOfEverybody));
    const part = await transaction.asOrganizations([mine, other], async () => [
      idsOf(await transaction.rows(usageOfEverybody)),
      await transaction.asOrganizations([other], async () => idsOf(await transaction.rows(usageOfEverybody))),
      idsOf(await transaction.rows(usageOfEverybody)),
    ]);
    // What goes wrong in a part without PostgreSQL's doing leaves it as well.
    await transaction.asOrganizations([mine], () => Promise.reject(new Error('no'))).catch(() => undefined);
    return [all, ...part, idsOf(await transaction.rows(usageOfEverybody))];
  });
  expect(seen).toEqual([[mine, other], [mine, other], [other], [mine, other], [mine, other]]);
  await single.close();
  await observer.query('delete from quota_usage');
});

test('the plans of an organization are made for as many rows as without the wall', async () => {
  const organizationId = newId();
  await observer.query(
    `insert into contacts (organization_id, id, external_id, email, email_key, created_at, updated_at)
     select $1, gen_random_uuid(), n::text, n || '@example.com', n || '@example.com', now(), now()
     from generate_series(1, 2000) n`,
    [organizationId],
  );
  await observer.query('analyze contacts');
  const rowsOfPlan = unpreparedStatement<Record<string, string>>(
    `explain select from contacts where organization_id = '${organizationId}'`,
  );
  const estimate = async (connection: Connection) => {
    const lines = (await connection.rows(rowsOfPlan)).flatMap((row) => Object.values(row));
    return Number(/rows=(\d+)/.exec(lines[0]!)![1]);
  };
  const [outside, inside] = [
    await estimate(database),
    await database.asOrganizations([organizationId], estimate),
  ];
  expect(outside).toBeGreaterThan(1_000);
  expect(inside / outside).toBeGreaterThan(0.9);
  await observer.query('delete from contacts');
});

const planning = unpreparedStatement<{ plans: string; scans: string; joins: string }>(
  `select current_setting('plan_cache_mode') as plans, current_setting('enable_seqscan') as scans,
     current_setting('enable_hashjoin') as joins`,
);
const byIndex = [{ plans: 'force_generic_plan', scans: 'off', joins: 'off' }];
const plainly = [{ plans: 'auto', scans: 'on', joins: 'on' }];

/** As one to a pooler that leaves the settings of a session out: what a URL says of them replaces what we do. */
function withoutSettings(): DatabaseAddress {
  const { host, user, database: name } = address as Extract<DatabaseAddress, { host: string }>;
  const place = new URLSearchParams({ host, port: '5432', options: '-c work_mem=4MB' });
  return { url: `postgres://${user}@/${name}?${place.toString()}` };
}

test('transactions by index are planned by index and others are not, with few connections, with many, and behind a pooler', async () => {
  const opened = [
    openDatabase({ address, connectionsMax: 1 }),
    openDatabase({ address, connectionsMax: 8 }),
    openDatabase({ address: withoutSettings(), connectionsMax: 8 }),
  ];
  for (const each of opened) {
    // Twice, so that connections are met again.
    for (let time = 1; time <= 2; time += 1) {
      const ask = (transaction: Connection) => transaction.rows(planning);
      expect(await each.transactionByIndex(ask)).toEqual(byIndex);
      expect(await each.asOrganizationsByIndex([newId()], ask)).toEqual(byIndex);
      expect(await each.together(null, [{ statement: planning, values: [] }])).toEqual([byIndex]);
      expect(await each.together([newId()], [{ statement: planning, values: [] }])).toEqual([byIndex]);
      expect(await each.transaction(ask)).toEqual(plainly);
      expect(await each.asOrganizations([newId()], ask)).toEqual(plainly);
      expect(await each.rows(planning)).toEqual(plainly);
    }
    await each.close();
  }
});

test('all kinds of transactions together take no more connections than they may', async () => {
  const eight = openDatabase({ address, connectionsMax: 8, applicationName: 'eight' });
  let arrived = 0;
  let letGo: () => void = () => undefined;
  const allThere = new Promise<void>((resolve) => (letGo = resolve));
  const hold = async () => {
    arrived += 1;
    if (arrived === 8) letGo();
    await allThere;
  };
  const held = Array.from({ length: 12 }, () => [eight.transaction(hold), eight.transactionByIndex(hold)]);
  await allThere;
  expect(await connectionsOf('eight')).toHaveLength(8);
  await Promise.all(held.flat());
  await eight.close();
});

test('a caller that gives up while a connection is opened for it leaves none taken', async () => {
  const { host, user, database: name } = address as Extract<DatabaseAddress, { host: string }>;
  let answersAfterMs = 0;
  const far = createServer((client) => {
    const server = connect(`${host}/.s.PGSQL.5432`);
    const delayMs = answersAfterMs;
    server.on('data', (data) => setTimeout(() => client.write(data), delayMs));
    client.on('data', (data) => server.write(data));
    for (const [one, other] of [
      [client, server],
      [server, client],
    ] as const)
      one.on('error', () => undefined).on('close', () => other.destroy());
  }).listen(0, '127.0.0.1');
  await once(far, 'listening');
  const { port } = far.address() as AddressInfo;
  const eight = openDatabase({
    address: { url: `postgres://${user}@127.0.0.1:${port}/${name}` },
    connectionsMax: 8,
    applicationName: 'given up',
  });
  let letGo: () => void = () => undefined;
  const over = new Promise<void>((resolve) => (letGo = resolve));
  let taken = 0;
  const held = Array.from({ length: 4 }, () =>
    eight.transactionByIndex(() => ((taken += 1), over)).catch(() => undefined),
  );
  while (taken < 4) await new Promise(setImmediate);
  await terminate('given up');
  // It waits for three seconds, for a connection that is open later than that.
  const waiting = eight
    .transactionByIndex(() => Promise.resolve())
    .then(
      () => 'served',
      () => 'refused',
    );
  answersAfterMs = 3_500;
  letGo();
  await Promise.all(held);
  expect(await waiting).toBe('refused');
  answersAfterMs = 0;
  const all = Array.from({ length: 8 }, () => eight.transactionByIndex(() => Promise.resolve('served')));
  expect(new Set(await Promise.all(all))).toEqual(new Set(['served']));
  expect(eight.connections().used).toBe(0);
  await eight.close();
  far.close();
});

test('role and organizations end with the transaction: the next user of the connection has neither', async () => {
  const single = openDatabase({ address, connectionsMax: 1 });
  const settings = unpreparedStatement<{ role: string; ids: string | null }>(
    "select current_user::text as role, nullif(current_setting('postillion.organization_ids', true), '') as ids",
  );
  const [before] = await single.rows(settings);
  const mine = newId();
  const inside = await single.asOrganizations([mine], (transaction) => transaction.rows(settings));
  expect(inside).toEqual([{ role: 'postillion_tenant', ids: mine }]);
  expect(await single.rows(settings)).toEqual([before]);
  await single.asOrganizations([mine], () => Promise.reject(new Error('no'))).catch(() => undefined);
  expect(await single.rows(settings)).toEqual([before]);
  expect(await single.transaction((transaction) => transaction.rows(settings))).toEqual([before]);
  await single.close();
});

test('the first transactions inside the wall find a connection even if there is only one, or all begin at once', async () => {
  for (const connectionsMax of [1, 3]) {
    const fresh = openDatabase({ address, connectionsMax, applicationName: 'fresh' });
    const results = await Promise.all(
      Array.from({ length: 6 }, (_, index) => fresh.asOrganizations([newId()], () => Promise.resolve(index))),
    );
    expect(results).toEqual([0, 1, 2, 3, 4, 5]);
    await fresh.close();
  }
});

test('every table that has an organization is protected by the wall, and the role inside it owns nothing', async () => {
  const { rows } = await observer.query<{ name: string }>(
    `select c.relname as name
     from pg_class c
     join pg_attribute a on a.attrelid = c.oid and a.attname = 'organization_id'
     where c.relkind in ('r', 'p')
       and c.relnamespace = 'public'::regnamespace
       and not c.relispartition
       and c.relname <> all ($1)
       and (not c.relrowsecurity or not exists (select from pg_policy where polrelid = c.oid))`,
    // The inbox of the installation, which shows every organization's mail to its readers.
    [['sandbox_messages']],
  );
  expect(rows).toEqual([]);
  const { rows: roles } = await observer.query(
    `select rolsuper, rolbypassrls, rolcanlogin, exists (select from pg_class where relowner = r.oid) as owns
     from pg_roles r where rolname = 'postillion_tenant'`,
  );
  expect(roles).toEqual([{ rolsuper: false, rolbypassrls: false, rolcanlogin: false, owns: false }]);
});

test('a backend that is killed in the middle is reported as an unavailable database, and the next statement works', async () => {
  const pool = openDatabase({ address, connectionsMax: 2, applicationName: 'killed' });
  const killed = pool.transaction(async (transaction) => {
    await transaction.rows(insertMark, ['lost']);
    await terminate('killed');
    await transaction.rows(insertMark, ['never']);
  });
  await expect(killed).rejects.toBeInstanceOf(DatabaseUnavailableError);
  expect(await pool.rows(unpreparedStatement('select 1 as one'))).toEqual([{ one: 1 }]);
  expect(await listMarks()).toEqual([]);
  await pool.close();
  await whenGone('killed');
});

test('a backend that is killed while a statement runs is reported as an unavailable database', async () => {
  const pool = openDatabase({ address, connectionsMax: 1, applicationName: 'asleep' });
  await pool.rows(unpreparedStatement('select 1'));
  const asleep = expect(pool.rows(unpreparedStatement('select pg_sleep(60)'))).rejects.toBeInstanceOf(
    DatabaseUnavailableError,
  );
  for (let isAsleep = false; !isAsleep;) {
    isAsleep = (await connectionsOf('asleep')).some(({ state }) => state === 'active');
  }
  await terminate('asleep');
  await asleep;
  await pool.close();
});

test('idle connections that were killed are replaced, and each costs at most one error', async () => {
  const pool = openDatabase({ address, connectionsMax: 3, applicationName: 'idle' });
  const ask = () => pool.rows(unpreparedStatement('select 1'));
  await Promise.all([ask(), ask(), ask()]);
  await terminate('idle');
  const outcomes: string[] = [];
  for (let attempt = 0; attempt < 4; attempt += 1) {
    outcomes.push(
      await ask().then(
        () => 'answered',
        (cause: unknown) => (cause instanceof DatabaseUnavailableError ? 'unavailable' : String(cause)),
      ),
    );
  }
  // Each dead connection can disappoint once, before its end was noticed.
  expect(outcomes.at(-1)).toBe('answered');
  expect(outcomes.filter((outcome) => outcome !== 'answered' && outcome !== 'unavailable')).toEqual([]);
  await pool.close();
});

test('a database that cannot be reached, refuses or says nothing is reported as unavailable', async () => {
  const silent = createServer(() => undefined).listen(0, '127.0.0.1');
  await once(silent, 'listening');
  const { port } = silent.address() as AddressInfo;
  const attempts = ['postgres://127.0.0.1:1/x', `postgres://127.0.0.1:${port}/x`].map(async (url) => {
    const away = openDatabase({ address: { url }, connectionsMax: 4 });
    const outcomes = await Promise.allSettled([
      away.rows(unpreparedStatement('select 1')),
      away.transaction(() => Promise.resolve()),
      away.asOrganizations([newId()], () => Promise.resolve()),
      away.connectAlone('alone'),
    ]);
    await away.close();
    return outcomes.map(
      (outcome) => outcome.status === 'rejected' && outcome.reason instanceof DatabaseUnavailableError,
    );
  });
  expect((await Promise.all(attempts)).flat()).toEqual(Array.from({ length: 8 }, () => true));
  silent.close();
});

test('an error of the statement itself is not taken for an unavailable database', async () => {
  const error: unknown = await database
    .rows(unpreparedStatement("select 'x'::integer"))
    .catch((cause: unknown) => cause);
  expect(error).not.toBeInstanceOf(DatabaseUnavailableError);
  expect(sqlState(error)).toBe('22P02');
  expect(sqlState(new Error('other'))).toBeUndefined();
});

test('counts, sums and days arrive as numbers and text, the rest as it is', async () => {
  const [row] = await database.rows(
    unpreparedStatement(
      `select 9007199254740991::bigint as big, sum(x) as sum, '2026-11-01'::date as day, true as yes,
         '2026-11-21T10:00:00+02'::timestamptz as at, '\\x00ff'::bytea as bytes, array['a', null] as texts,
         null::bigint as nothing
       from (values (1::bigint), (2)) as v (x)`,
    ),
  );
  expect(row).toEqual({
    big: 9_007_199_254_740_991,
    sum: 3,
    day: '2026-11-01',
    yes: true,
    at: new Date('2026-11-21T08:00:00Z'),
    bytes: Buffer.from([0, 255]),
    texts: ['a', null],
    nothing: null,
  });
});

test('statements without preparation work where a pooler would lose them', async () => {
  const plain = openDatabase({
    address,
    connectionsMax: 1,
    usePreparedStatements: false,
  });
  await plain.rows(insertMark, ['plain']);
  await plain.asOrganizations([newId()], () => Promise.resolve());
  expect(await plain.rows(unpreparedStatement('select from pg_prepared_statements'))).toEqual([]);
  expect(await listMarks()).toEqual(['plain']);
  await plain.close();
});

test('a connection of its own is none of the pool, and ends when its holder ends it', async () => {
  const alone = await database.connectAlone('alone');
  expect(await connectionsOf('alone')).toHaveLength(1);
  await alone.end();
  for (let isGone = false; !isGone;) isGone = (await connectionsOf('alone')).length === 0;
});
