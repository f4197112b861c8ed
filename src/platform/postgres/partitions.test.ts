import { beforeAll, expect, test } from 'vitest';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { createIds } from '../ids.ts';
import {
  type Connection,
  type Database,
  openDatabase,
  unpreparedStatement,
  type DatabaseAddress,
} from './database.ts';
import {
  createPartitions,
  dropPartitionsBefore,
  findMissingPartitions,
  measureTables,
  splitPartitionsAhead,
  withPartitionsOnDemand,
} from './partitions.ts';

let address: DatabaseAddress;
let database: Database;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
  address = opened.address;
});
beforeAll(async () => {
  // A partition without the generated column could not be attached, nor could those of the tables that come after it.
  await database.rows(
    unpreparedStatement(
      `create table diary (
         id uuid primary key,
         day text,
         day_length integer not null generated always as (length(day)) stored
       ) partition by range (id)`,
    ),
  );
});

async function listPartitions(table = 'diary'): Promise<string[]> {
  const rows = await database.rows(
    unpreparedStatement<{ name: string }>(
      'select inhrelid::regclass::text as name from pg_inherits where inhparent = $1::regclass order by 1',
    ),
    [table],
  );
  return rows.map(({ name }) => name);
}

/** The partition that a row of that time went into. */
async function placeOf(time: string): Promise<string> {
  const id = createIds(createManualClock(Date.parse(time)))();
  const [row] = await database.rows(
    unpreparedStatement<{ place: string }>(
      'insert into diary values ($1, $2) returning tableoid::regclass::text as place',
    ),
    [id, time],
  );
  return row!.place;
}

test('there is room for the present month and the next three, and for all that was before', async () => {
  await createPartitions(database, new Date('2026-11-21T12:00:00Z'));
  expect(await listPartitions()).toEqual([
    'diary_2026_11',
    'diary_2026_12',
    'diary_2027_01',
    'diary_2027_02',
  ]);
  expect(await placeOf('2020-02-29T00:00:00Z')).toBe('diary_2026_11');
  expect(await placeOf('2027-02-28T23:59:59.999Z')).toBe('diary_2027_02');
  await expect(placeOf('2027-03-01T00:00:00Z')).rejects.toThrow('no partition');
});

test('a month ends in UTC, to the millisecond', async () => {
  expect(await placeOf('2026-11-30T23:59:59.999Z')).toBe('diary_2026_11');
  expect(await placeOf('2026-12-01T00:00:00.000Z')).toBe('diary_2026_12');
});

test('two nodes that make partitions at once, or make them twice, end with the same ones', async () => {
  const nodes = [1, 2].map(() => openDatabase({ address: address, connectionsMax: 1 }));
  const at = new Date('2026-12-31T23:59:59Z');
  await Promise.all(nodes.map((node) => createPartitions(node, at)));
  await createPartitions(database, at);
  expect((await listPartitions()).at(-1)).toBe('diary_2027_03');
  expect(await listPartitions()).toHaveLength(5);
  await Promise.all(nodes.map((node) => node.close()));
});

test('after months of standing still there is room for the present again, and what was stored is still there', async () => {
  await createPartitions(database, new Date('2027-09-10T00:00:00Z'));
  expect((await listPartitions()).slice(-4)).toEqual([
    'diary_2027_09',
    'diary_2027_10',
    'diary_2027_11',
    'diary_2027_12',
  ]);
  expect(await placeOf('2027-09-10T00:00:00Z')).toBe('diary_2027_09');
  expect(await placeOf('2026-11-01T00:00:00Z')).toBe('diary_2026_11');
});

test('a clock that was far ahead for a while leaves no month without a partition', async () => {
  await createPartitions(database, new Date('2035-06-10T00:00:00Z'));
  expect(await placeOf('2035-07-01T00:00:00Z')).toBe('diary_2035_07');
  await createPartitions(database, new Date('2027-12-10T00:00:00Z'));
  await createPartitions(database, new Date('2028-02-10T00:00:00Z'));
  expect(await placeOf('2028-01-31T23:59:59Z')).toBe('diary_2028_01');
  expect(await placeOf('2028-05-01T00:00:00Z')).toBe('diary_2028_05');
});

test.each([
  ['transaction', '2040-01-10T00:00:00Z'],
  ['transactionByIndex', '2041-01-10T00:00:00Z'],
  ['asOrganizations', '2042-01-10T00:00:00Z'],
  ['asOrganizationsByIndex', '2043-01-10T00:00:00Z'],
  ['together', '2044-01-10T00:00:00Z'],
] as const)('a partition that is missing is made for %s', async (form, time) => {
  const clock = createManualClock(Date.parse(time));
  const opened = withPartitionsOnDemand(database, clock);
  const insertion = {
    statement: unpreparedStatement('insert into diary values ($1, $2)'),
    values: [createIds(clock)(), time],
  };
  const insert = (transaction: Connection) => transaction.rows(insertion.statement, insertion.values);
  // The role of the second wall may write here as everybody may.
  await database.rows(unpreparedStatement('grant insert on diary to public'));
  if (form === 'together') await opened.together(null, [insertion]);
  else if (form === 'transaction' || form === 'transactionByIndex') await opened[form](insert);
  else await opened[form]([createIds(clock)()], insert);
  expect(await listPartitions()).toContain(`diary_${time.slice(0, 7).replace('-', '_')}`);
});

test('months that are over are dropped, the one of the instant and those of other tables are not', async () => {
  await database.rows(
    unpreparedStatement('create table journal (id uuid primary key) partition by range (id)'),
  );
  await database.rows(
    unpreparedStatement("call create_partitions('journal', '2026-09-15T00:00:00Z', 'month', 4)"),
  );
  const monthsOf = async () => (await listPartitions('journal')).map((name) => name.replace('journal_', ''));
  const diary = await listPartitions();
  await dropPartitionsBefore(database, ['journal'], new Date('2026-10-31T23:59:59.999Z'));
  expect(await monthsOf()).toEqual(['2026_10', '2026_11', '2026_12']);
  await dropPartitionsBefore(database, ['journal'], new Date('2026-11-01T00:00:00Z'));
  await dropPartitionsBefore(database, ['journal'], new Date('2026-11-01T00:00:00Z'));
  expect(await monthsOf()).toEqual(['2026_11', '2026_12']);
  expect(await listPartitions()).toEqual(diary);
});

test('a month that somebody uses is not waited for', async () => {
  const [used] = await listPartitions();
  const node = openDatabase({ address, connectionsMax: 1 });
  await node.transaction(async (transaction) => {
    await transaction.rows(unpreparedStatement(`lock table ${used!} in access share mode`));
    const dropping = dropPartitionsBefore(database, ['diary'], new Date('2026-12-01T00:00:00Z'));
    await expect(dropping).rejects.toThrow('lock timeout');
  });
  await node.close();
  expect((await listPartitions())[0]).toBe(used);
});

test('a new month is filled like the one before it', async () => {
  await database.rows(
    unpreparedStatement('create table ledger (id uuid primary key, sum integer) partition by range (id)'),
  );
  await database.rows(
    unpreparedStatement("call create_partitions('ledger', '2026-11-21T12:00:00Z', 'month', 1, 45)"),
  );
  await createPartitions(database, new Date('2026-11-21T12:00:00Z'));
  const options = await database.rows(
    unpreparedStatement(
      "select reloptions::text from pg_class where relname in ('ledger_2026_11', 'ledger_2027_02', 'diary_2026_11') order by relname",
    ),
  );
  expect(options).toEqual([
    { reloptions: '{fillfactor=100}' },
    { reloptions: '{fillfactor=45}' },
    { reloptions: '{fillfactor=45}' },
  ]);
});

/** A table of its own, with an id and nothing else. */
async function createTable(name: string): Promise<void> {
  await database.rows(
    unpreparedStatement(`create table ${name} (id uuid primary key) partition by range (id)`),
  );
}

const insertAt = async (table: string, time: string) => {
  const [row] = await database.rows(
    unpreparedStatement<{ place: string }>(
      `insert into ${table} values ($1) returning tableoid::regclass::text as place`,
    ),
    [createIds(createManualClock(Date.parse(time)))()],
  );
  return row!.place;
};

test('days and weeks follow the month that is there, and a whole month follows days', async () => {
  await createTable('shop');
  await createPartitions(database, new Date('2026-11-30T12:00:00Z'), 'month');
  const months = ['shop_2026_11', 'shop_2026_12', 'shop_2027_01', 'shop_2027_02'];
  expect(await listPartitions('shop')).toEqual(months);
  await createPartitions(database, new Date('2027-02-27T00:00:00Z'), 'day');
  expect((await listPartitions('shop')).slice(4)).toEqual(
    Array.from({ length: 6 }, (_, day) => `shop_2027_03_${String(day + 1).padStart(2, '0')}`),
  );
  // A week begins on a Monday, this one where the days end.
  await createPartitions(database, new Date('2027-03-05T00:00:00Z'), 'week');
  expect((await listPartitions('shop')).slice(10)).toEqual(
    ['03_07', '03_08', '03_15', '03_22', '03_29', '04_05'].map((day) => `shop_2027_${day}`),
  );
  await createPartitions(database, new Date('2027-04-01T00:00:00Z'), 'month');
  expect((await listPartitions('shop')).slice(16)).toEqual([
    'shop_2027_04_12',
    'shop_2027_05',
    'shop_2027_06',
    'shop_2027_07',
  ]);
  const places = ['2027-02-28T23:59:59.999Z', '2027-03-01T00:00:00.000Z', '2027-04-11T23:59:59.999Z'];
  expect(await Promise.all(places.map((time) => insertAt('shop', time)))).toEqual([
    'shop_2027_02',
    'shop_2027_03_01',
    'shop_2027_04_05',
  ]);
  expect(await insertAt('shop', '2027-04-30T23:59:59.999Z')).toBe('shop_2027_04_12');
});

test('a smaller size takes effect with the next month, but where that has rows already', async () => {
  await createTable('ship');
  const at = new Date('2026-11-25T12:00:00Z');
  await createPartitions(database, at);
  await insertAt('ship', '2027-01-10T00:00:00Z');
  await splitPartitionsAhead(database, at, 'day');
  await splitPartitionsAhead(database, at, 'day');
  const names = await listPartitions('ship');
  expect(names[0]).toBe('ship_2026_11');
  expect(names.slice(1, -1)).toEqual(Array.from({ length: 2 }, (_, day) => `ship_2026_12_0${day + 1}`));
  expect(names.at(-1)).toBe('ship_2027_01');
  await createPartitions(database, new Date('2026-12-30T12:00:00Z'), 'day');
  expect(await insertAt('ship', '2026-12-31T23:00:00Z')).toBe('ship_2026_12_31');
  expect(await insertAt('ship', '2027-01-31T23:00:00Z')).toBe('ship_2027_01');
  // Nothing is made larger again.
  await splitPartitionsAhead(database, at, 'month');
  expect(await listPartitions('ship')).toContain('ship_2026_12_31');
});

test('a partition computes what its table computes', async () => {
  await database.rows(
    unpreparedStatement(
      `create table parcel (
         id uuid primary key,
         label text not null,
         label_bytes integer not null generated always as (octet_length(label)) stored
       ) partition by range (id)`,
    ),
  );
  await createPartitions(database, new Date('2026-11-25T12:00:00Z'));
  const rows = await database.rows(
    unpreparedStatement(
      "insert into parcel (id, label) values (lowest_id_at('2026-12-25T12:00:00Z'), 'Büro') returning label_bytes",
    ),
  );
  expect(rows).toEqual([{ label_bytes: 5 }]);
});

test('tables are dropped together, the oldest time first, and not as long as something in them is in use', async () => {
  await createTable('cargo');
  await createTable('crates');
  for (const table of ['cargo', 'crates'])
    await database.rows(
      unpreparedStatement(`call create_partitions('${table}', '2026-10-05T00:00:00Z', 'week', 4)`),
    );
  const weeks = async () => [await listPartitions('cargo'), await listPartitions('crates')];
  const all = await weeks();
  const tables = ['cargo', 'crates'];
  const before = new Date('2026-10-26T00:00:00Z');
  const asked: (string | null)[] = [];
  const refused = await dropPartitionsBefore(database, tables, before, {
    mayGo: (_transaction, { from }) => {
      asked.push(from);
      return Promise.resolve(from !== null);
    },
    finish: () => Promise.resolve(false),
  });
  expect([refused, asked.map((id) => id === null)]).toEqual([0, [true, false, false]]);
  expect(await weeks()).toEqual(all);
  const isSecond = (from: string | null) => from !== null && from === asked[1];
  const dropped = await dropPartitionsBefore(database, tables, before, {
    mayGo: (_transaction, { from }) => Promise.resolve(!isSecond(from)),
  });
  expect(dropped).toBe(4);
  expect(await weeks()).toEqual([
    ['cargo_2026_10_12', 'cargo_2026_10_26'],
    ['crates_2026_10_12', 'crates_2026_10_26'],
  ]);
  // A row of the time that is gone has no place, and none is made for it.
  await createPartitions(database, new Date('2026-10-26T00:00:00Z'), 'week');
  await expect(insertAt('cargo', '2026-10-20T00:00:00Z')).rejects.toThrow('no partition');
});

test('two nodes that drop at once are done after one has dropped', async () => {
  await createTable('sails');
  await database.rows(
    unpreparedStatement("call create_partitions('sails', '2026-10-05T00:00:00Z', 'day', 5)"),
  );
  const nodes = [1, 2].map(() => openDatabase({ address, connectionsMax: 1 }));
  const drop = (node: Database) => dropPartitionsBefore(node, ['sails'], new Date('2026-10-08T12:00:00Z'));
  const dropped = await Promise.all(nodes.map(drop));
  // Whom the other was before did nothing.
  await drop(nodes[0]!);
  expect(Math.max(...dropped)).toBeGreaterThan(0);
  expect(await listPartitions('sails')).toEqual(['sails_2026_10_08', 'sails_2026_10_09']);
  await Promise.all(nodes.map((node) => node.close()));
});

test('times without a partition are named, and so is what a table takes on disk', async () => {
  const at = new Date('2050-01-15T00:00:00Z');
  await createPartitions(database, at);
  const missing = async (size: 'month' | 'week' | 'day') =>
    (await findMissingPartitions(database, at, size)).filter((name) => name.startsWith('sails '));
  expect(await missing('month')).toEqual([]);
  await database.rows(unpreparedStatement('drop table sails_2050_02'));
  expect(await missing('month')).toEqual(['sails of 2050-02-01']);
  expect(await missing('week')).toEqual([]);
  expect(await missing('day')).toEqual([]);
  const [extent, ...others] = await measureTables(database, ['sails']);
  expect(others).toEqual([]);
  expect(extent).toMatchObject({
    table: 'sails',
    partitions: 5,
    oldestEndsAt: new Date('2026-10-09T00:00:00Z'),
  });
  expect(extent!.bytes).toBeGreaterThan(0);
});

test('a table whose rows go by the day has days, whatever the size of the others', async () => {
  const at = new Date('2060-03-30T12:00:00Z');
  await createPartitions(database, at, 'month');
  const days = (await listPartitions('request_log')).filter((name) => name.startsWith('request_log_2060'));
  expect(days).toEqual([
    'request_log_2060_03_30',
    'request_log_2060_03_31',
    ...[1, 2, 3, 4, 5, 6].map((day) => `request_log_2060_04_0${day}`),
  ]);
  await splitPartitionsAhead(database, at, 'month');
  const missing = async () =>
    (await findMissingPartitions(database, at, 'month')).filter((name) => name.startsWith('request_log'));
  expect(await missing()).toEqual([]);
  await database.rows(unpreparedStatement('drop table request_log_2060_04_02'));
  expect(await missing()).toEqual(['request_log of 2060-04-02']);
});
