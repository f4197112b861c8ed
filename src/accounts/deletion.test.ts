import { expect, test } from 'vitest';
import { acme, fillTables, listTables, rival } from '../../test/support/filled-tables.ts';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { addressOfRequests, useTestDatabase } from '../../test/support/test-database.ts';
import {
  type Database,
  type DatabaseAddress,
  openDatabase,
  OrganizationDeletedError,
  statement,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { deleteGoneOrganizations } from './deletion-store.ts';
import { deleteOrganization } from './deletion.ts';

let database: Database;
let address: DatabaseAddress;
useTestDatabase({ isForEachTest: true }, (opened) => {
  ({ database, address } = opened);
});

/** More than a batch of the tests, and less than three. */
const rowsOfEach = 250;
const rowsMax = 100;

/** Tables whose rows are of no organization, or go by themselves: why nothing of an organization stays in them. */
const withoutOrganization: Readonly<Record<string, string>> = {
  hand_offs: 'What is being handed off at this moment: a worker deletes it when it is over.',
  open_breakers: 'Of workers.',
  organizations: 'The row of the organization, which housekeeping deletes.',
  postmaster_mail: 'What was written to the operator.',
  provider_events: 'Reports that wait: applied, or given up when their recipient is not found.',
  rate_windows: 'Deleted after ten minutes.',
  schema_migrations: 'Of the schema.',
  secret_keys: 'Of the installation.',
  sms_events: 'Texts that wait: applied, or given up when nobody has their number.',
  storage_measuring: 'Of the installation.',
  workers: 'Of workers.',
};

const third = '01890f3c-0000-7000-8000-000000000003';

const run = <Row>(text: string, values: readonly unknown[] = []) =>
  database.rows(unpreparedStatement<Row>(text), values);

/** All rows of an organization in a table, as a digest and a number. */
const digestOf = async (table: string, organizationId: string) => {
  const [row] = await run<{ rows: number; digest: string | null }>(
    `select count(*)::integer as rows, md5(string_agg(t::text, ',' order by t::text)) as digest
     from ${table} t where organization_id = $1`,
    [organizationId],
  );
  return { table, ...row! };
};

const owned = async () => (await listTables(database)).filter((table) => table.has_organization);

const begin = (options: { signal?: AbortSignal; isAtWork?: () => Promise<boolean> } = {}) => {
  const clock = createManualClock();
  const seen: number[] = [];
  const outcome = deleteOrganization(
    { database, clock },
    {
      organizationId: acme,
      isAtWork: options.isAtWork ?? (() => Promise.resolve(false)),
      signal: options.signal ?? new AbortController().signal,
      onProgress: (rows) => seen.push(rows),
      rowsMax,
    },
  );
  return { clock, outcome, seen };
};

const createSignal = () => {
  let give = () => undefined as void;
  const given = new Promise<void>((resolve) => {
    give = resolve;
  });
  return {
    given,
    give: () => {
      give();
    },
  };
};

test('every table of the schema has its organization, or a reason why it has none', async () => {
  const others = (await listTables(database))
    .filter((table) => !table.has_organization)
    .map(({ name }) => name);
  expect(others).toEqual(Object.keys(withoutOrganization));
});

test('nothing of an organization stays in any table, and nothing of another with the same data is touched', async () => {
  const tables = await owned();
  await fillTables(database, tables, rowsOfEach);
  const before = await Promise.all(tables.map(({ name }) => digestOf(name, rival)));
  // What has one row for an organization, or is kept by triggers, has fewer.
  for (const { table, rows } of before)
    expect([table, rows]).toEqual([table, expect.toSatisfy((n) => n > 0)]);
  expect(before.filter(({ rows }) => rows >= rowsOfEach).length).toBeGreaterThan(tables.length - 10);

  const { clock, outcome, seen } = begin();
  await clock.whenWaiting(1);
  clock.advance(5_000);
  const { kind, rows } = await outcome;
  expect(kind).toBe('deleted');
  expect(rows).toBeGreaterThanOrEqual(before.reduce((sum, each) => sum + each.rows, 0));
  expect(seen).toEqual([...seen].sort((a, b) => a - b));
  expect(seen.at(-1)).toBe(rows);

  expect(
    (await Promise.all(tables.map(({ name }) => digestOf(name, acme)))).filter((each) => each.rows > 0),
  ).toEqual([]);
  expect(await Promise.all(tables.map(({ name }) => digestOf(name, rival)))).toEqual(before);
  expect(await run('select id, name, deletion from organizations order by id')).toEqual([
    { id: acme, name: 'deleted', deletion: 'gone' },
    { id: rival, name: 'Acme', deletion: null },
  ]);
});

test('a deletion that was interrupted goes on where it ended, and meanwhile nobody sees or writes anything of it', async () => {
  const tables = await owned();
  await fillTables(database, tables, rowsOfEach);
  const interruption = new AbortController();
  const clock = createManualClock();
  const work = { organizationId: acme, isAtWork: () => Promise.resolve(false), rowsMax };
  const first = deleteOrganization(
    { database, clock },
    {
      ...work,
      signal: interruption.signal,
      onProgress: (rows) => {
        if (rows > 1_000) interruption.abort();
      },
    },
  );
  await clock.whenWaiting(1);
  clock.advance(5_000);
  const interrupted = await first;
  expect(interrupted).toEqual({ kind: 'interrupted', rows: expect.any(Number) });
  const left = await Promise.all(tables.map(({ name }) => digestOf(name, acme)));
  expect(left.some(({ rows }) => rows > 0)).toBe(true);

  const countSeen = (organizationIds: string[]) =>
    database.asOrganizations(organizationIds, async (transaction) => {
      const [row] = await transaction.rows(
        unpreparedStatement<{ contacts: number; organizations: number }>(
          `select (select count(*)::integer from contacts) as contacts,
             (select count(*)::integer from organizations) as organizations`,
        ),
      );
      return row;
    });
  expect(await countSeen([acme])).toEqual({ contacts: 0, organizations: 0 });
  expect(await countSeen([acme, rival])).toEqual({ contacts: rowsOfEach, organizations: 1 });
  const insertHold = (organizationId: string) => ({
    statement: unpreparedStatement<unknown>(
      `insert into holds (organization_id, held_kind, held_id, holder_kind, holder_id)
       values ($1, 'list', gen_random_uuid(), 'segment', gen_random_uuid())`,
    ),
    values: [organizationId],
  });
  const countContacts = {
    statement: statement<{ contacts: number }>(
      'test_count_contacts',
      'select count(*)::integer as contacts from contacts',
    ),
    values: [],
  };
  const write = (organizationId: string) =>
    database.asOrganizations([organizationId], (transaction) => {
      const insert = insertHold(organizationId);
      return transaction.rows(insert.statement, insert.values);
    });
  await expect(write(acme)).rejects.toThrow(OrganizationDeletedError);
  await expect(database.together([acme], [insertHold(acme)])).rejects.toThrow(OrganizationDeletedError);
  await write(rival);
  expect(await database.together([acme, rival], [countContacts])).toEqual([[{ contacts: rowsOfEach }]]);

  const again = await deleteOrganization(
    { database, clock },
    { ...work, signal: new AbortController().signal, onProgress: () => undefined },
  );
  expect(again.kind).toBe('deleted');
  // Triggers may have written some more.
  expect(again.rows).toBeGreaterThanOrEqual(left.reduce((sum, { rows }) => sum + rows, 0));
  expect(await run('select id, name, deletion from organizations order by id')).toEqual([
    { id: acme, name: 'deleted', deletion: 'gone' },
    { id: rival, name: 'Acme', deletion: null },
  ]);
});

test('sessions that have worked for organizations leave out those that are being deleted, until the last one is forgotten', async () => {
  await run(
    `insert into organizations (id, name, created_at, updated_at)
     select id, 'Acme', now(), now() from unnest($1::uuid[]) id`,
    [[acme, rival, third]],
  );
  // One connection of each kind, whose plans are made before and stay.
  const ofRequests = openDatabase({
    address: addressOfRequests(address),
    connectionsMax: 1,
    servesRequests: true,
  });
  const seenBy = async (of: Database) => {
    const select = statement<{ id: string }>(
      'test_select_organizations',
      'select id from organizations order by id',
    );
    const seen = [
      of.asOrganizations([acme, rival, third], (transaction) => transaction.rows(select)),
      of.asOrganizationsByIndex([acme, rival, third], (transaction) => transaction.rows(select)),
      of.together([acme, rival, third], [{ statement: select, values: [] }]).then(([rows]) => rows),
    ];
    const [first, ...others] = (await Promise.all(seen)).map((rows) => rows.map(({ id }) => id));
    for (const other of others) expect(other).toEqual(first);
    return first;
  };
  const seen = async () => {
    const byRequests = await seenBy(ofRequests);
    expect(await seenBy(database)).toEqual(byRequests);
    return byRequests;
  };
  const isLookedUp = async () => {
    const [row] = await run<{ source: string }>(
      `select prosrc as source from pg_proc where proname = 'organizations_in_service'`,
    );
    return row!.source.trim() !== 'select ids';
  };
  const change = (id: string, deletion: string) =>
    run('update organizations set deletion = $2 where id = $1', [id, deletion]);
  const selectServed = statement<{ id: string }>(
    'test_select_served',
    `select id from organizations o where ${isNotDeleted('o.id')} order by id`,
  );
  /** For whom work is looked for, whichever user asks. */
  const served = async () => {
    const [byOwner, byRequests] = await Promise.all([
      database.rows(selectServed),
      ofRequests.rows(selectServed),
    ]);
    expect(byRequests).toEqual(byOwner);
    return byOwner.map(({ id }) => id);
  };
  const planOfServed = async () =>
    (
      await run<{ 'QUERY PLAN': string }>(
        `explain select id from organizations o where ${isNotDeleted('o.id')}`,
      )
    )
      .map((line) => line['QUERY PLAN'])
      .join('\n');

  // More often than PostgreSQL makes a plan for the values at hand.
  for (let times = 1; times <= 7; times += 1) {
    expect(await seen()).toEqual([acme, rival, third]);
    expect(await served()).toEqual([acme, rival, third]);
  }
  expect(await planOfServed()).not.toContain('SubPlan');
  await change(acme, 'requested');
  expect(await seen()).toEqual([acme, rival, third]);
  expect(await served()).toEqual([rival, third]);
  expect(await planOfServed()).toContain('SubPlan');
  expect(await isLookedUp()).toBe(false);
  await Promise.all([change(acme, 'under_way'), change(rival, 'under_way')]);
  expect(await seen()).toEqual([third]);
  await change(acme, 'gone');
  expect(await seen()).toEqual([third]);
  const before = new Date(Date.now() + 60_000);
  await deleteGoneOrganizations(database, before);
  expect(await run('select id from organizations order by id')).toEqual([{ id: rival }, { id: third }]);
  expect(await seen()).toEqual([third]);
  await change(rival, 'gone');
  await deleteGoneOrganizations(database, before);
  expect(await isLookedUp()).toBe(false);
  expect(await planOfServed()).not.toContain('SubPlan');
  expect(await seen()).toEqual([third]);
  expect(await served()).toEqual([third]);
  await ofRequests.close();
});

test('a deletion whose transaction fails leaves the organization in service', async () => {
  await run(
    `insert into organizations (id, name, created_at, updated_at) values ('${acme}', 'Acme', now(), now())`,
  );
  const failing = database.transaction(async (transaction) => {
    await transaction.rows(unpreparedStatement(`update organizations set deletion = 'under_way'`));
    throw new Error('the connection broke');
  });
  await expect(failing).rejects.toThrow('the connection broke');
  const seen = await database.asOrganizations([acme], (transaction) =>
    transaction.rows(unpreparedStatement('select from organizations')),
  );
  expect(seen).toHaveLength(1);
});

test('hand-offs under way are waited for, for a minute at most', async () => {
  await run(
    `insert into organizations (id, name, created_at, updated_at) values ('${acme}', 'Acme', now(), now())`,
  );
  const asked: number[] = [];
  const { clock, outcome } = begin({
    isAtWork: async () => {
      const [row] = await run<{ deletion: string }>('select deletion from organizations');
      // Its outcome must be written, which the organization's transactions do.
      expect(row?.deletion).toBe('requested');
      return asked.push(clock.monotonicMs()) > 0;
    },
  });
  let isOver = false;
  void outcome.finally(() => {
    isOver = true;
  });
  const startedMs = clock.monotonicMs();
  await clock.whenWaiting(1);
  clock.advance(5_000);
  while (clock.monotonicMs() < startedMs + 65_000) {
    await clock.whenWaiting(1);
    expect(isOver).toBe(false);
    clock.advance(500);
  }
  expect(await outcome).toEqual({ kind: 'deleted', rows: 0 });
  expect(asked.length).toBe(120);
});

test('transactions that began before are waited for, whichever user has them', async () => {
  await run(
    `insert into organizations (id, name, created_at, updated_at)
     values ('${acme}', 'Acme', now(), now()), ('${rival}', 'Acme', now(), now())`,
  );
  const ofRequests = openDatabase({
    address: addressOfRequests(address),
    connectionsMax: 4,
    servesRequests: true,
  });
  const entered: Promise<void>[] = [];
  const released = createSignal();
  const hold = (organizationId: string) => {
    const entry = createSignal();
    entered.push(entry.given);
    return ofRequests.asOrganizations([organizationId], async (transaction) => {
      await transaction.rows(unpreparedStatement('select from contacts limit 1'));
      entry.give();
      await released.given;
      await transaction.rows(
        unpreparedStatement(
          `insert into holds (organization_id, held_kind, held_id, holder_kind, holder_id)
           values ($1, 'list', gen_random_uuid(), 'segment', gen_random_uuid())`,
        ),
        [organizationId],
      );
    });
  };
  const held = [hold(acme), hold(rival)];
  await Promise.all(entered);
  const { clock, outcome } = begin();
  await clock.whenWaiting(1);
  clock.advance(5_000);
  await Promise.race([clock.whenWaiting(1), outcome]);
  expect(await run('select id, deletion from organizations order by id')).toEqual([
    { id: acme, deletion: 'under_way' },
    { id: rival, deletion: null },
  ]);
  released.give();
  await Promise.all(held);
  clock.advance(500);
  expect(await outcome).toEqual({ kind: 'deleted', rows: 1 });
  expect(await run('select organization_id from holds')).toEqual([{ organization_id: rival }]);
  await ofRequests.close();
});

test('a statement that takes too long deletes fewer rows at once, and a row that triggers write again goes too', async () => {
  const tables = (await owned()).filter(({ name }) =>
    ['contacts', 'devices', 'contact_erasures'].includes(name),
  );
  await fillTables(database, tables, rowsOfEach);
  await run(`create function be_slow() returns trigger language plpgsql as $$
    begin
      if (select count(*) from gone) > 10 then
        raise exception 'canceling statement due to statement timeout' using errcode = '57014';
      end if;
      return null;
    end $$`);
  await run(`create trigger be_slow after delete on contacts referencing old table as gone
    for each statement execute function be_slow()`);
  const { clock, outcome } = begin();
  await clock.whenWaiting(1);
  clock.advance(5_000);
  await clock.whenWaiting(1);
  clock.advance(500);
  expect((await outcome).kind).toBe('deleted');
  for (const { name } of tables) expect((await digestOf(name, acme)).rows).toBe(0);
});

test('no such organization is no deletion', async () => {
  const { outcome } = begin();
  expect(await outcome).toEqual({ kind: 'not_found', rows: 0 });
});
