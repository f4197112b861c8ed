import { cp, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { type Database, openDatabase, unpreparedStatement, type DatabaseAddress } from './database.ts';
import { ForeignSchemaError, migrate, pendingMigrations } from './migrate.ts';
import { examineTenantWall } from './tenant-wall.ts';

let address: DatabaseAddress;
let database: Database;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
  address = opened.address;
});

async function emptySchema(): Promise<void> {
  await database.rows(unpreparedStatement('drop schema public cascade'));
  await database.rows(unpreparedStatement('create schema public'));
}

/** All that a schema consists of, in words. */
async function describeSchema(): Promise<string[]> {
  const rows = await database.rows(
    unpreparedStatement<{ line: string }>(
      `select format('%s.%s %s %s', table_name, column_name, data_type, is_nullable) as line
       from information_schema.columns where table_schema = 'public' and table_name <> 'schema_migrations'
       union all
       select indexdef from pg_indexes where schemaname = 'public'
       order by 1`,
    ),
  );
  return rows.map(({ line }) => line);
}

test('a migrated database lacks nothing, and migrating it again changes nothing', async () => {
  const before = await describeSchema();
  expect(before.length).toBeGreaterThan(50);
  expect(await pendingMigrations(database)).toEqual([]);
  expect(await migrate(database)).toEqual([]);
  expect(await describeSchema()).toEqual(before);
});

test('in an empty database everything is pending, each number once, and applied in that order', async () => {
  await emptySchema();
  const pending = await pendingMigrations(database);
  const versions = pending.map(({ version }) => version);
  expect(versions).toEqual([...new Set(versions)].sort((a, b) => a - b));
  expect(await migrate(database)).toEqual(pending);
  expect(await pendingMigrations(database)).toEqual([]);
});

test('the wall stands by migrations alone, and requests may read their organization, not change it', async () => {
  const granted = await database.rows(
    unpreparedStatement<{ table: string; privileges: string }>(
      `select table_name as table, string_agg(privilege_type, ', ' order by privilege_type) as privileges
       from information_schema.role_table_grants
       where grantee = 'postillion_tenant' and table_schema = 'public'
       group by table_name`,
    ),
  );
  const privileges = new Map(granted.map((row) => [row.table, row.privileges]));
  expect(privileges.get('organizations')).toBe('SELECT');
  expect(privileges.get('messages')).toBe('DELETE, INSERT, SELECT, UPDATE');
  expect(await examineTenantWall(database)).toEqual({ kind: 'standing' });
});

test('nodes that find the wall fallen at once mend it together', async () => {
  const fall = 'revoke all on all tables in schema public from postillion_tenant';
  await database.rows(unpreparedStatement(fall));
  const nodes = [1, 2, 3, 4].map(() => openDatabase({ address: address, connectionsMax: 1 }));
  await Promise.all(nodes.map((node) => migrate(node)));
  expect(await examineTenantWall(database)).toEqual({ kind: 'standing' });
  await Promise.all(nodes.map((node) => node.close()));
});

test('two nodes that migrate at once share the work: every migration is applied by exactly one', async () => {
  await emptySchema();
  const wanted = await pendingMigrations(database);
  const nodes = [1, 2].map(() => openDatabase({ address: address, connectionsMax: 1 }));
  const applied = await Promise.all(nodes.map((node) => migrate(node)));
  expect(applied.flat().sort((a, b) => a.version - b.version)).toEqual(wanted);
  await Promise.all(nodes.map((node) => node.close()));
});

test('a migration that fails changes nothing, and is tried again', async () => {
  await emptySchema();
  // The second migration finds its table taken.
  await database.rows(unpreparedStatement('create table organizations (obstacle integer)'));
  await expect(migrate(database)).rejects.toThrow('"organizations" already exists');
  const [first] = await pendingMigrations(database);
  expect(first?.version).toBe(2);
  await database.rows(unpreparedStatement('drop table organizations'));
  expect((await migrate(database))[0]).toEqual(first);
  expect(await pendingMigrations(database)).toEqual([]);
});

/** This schema with one more change, as a later release has it; `change` is its SQL. */
async function laterRelease(change: string): Promise<string> {
  const directory = await mkdtemp(path.join(tmpdir(), 'postillion-schema-'));
  made.push(directory);
  await cp('schema', directory, { recursive: true });
  await writeFile(path.join(directory, `${laterName}.sql`), change);
  return directory;
}
const later = 900;
const laterName = `0${later}-later`;
const made: string[] = [];
afterEach(async () => {
  await database.rows(unpreparedStatement(`delete from schema_migrations where version = ${later}`));
  await database.rows(unpreparedStatement('drop table if exists brought_later'));
  for (const directory of made.splice(0)) await rm(directory, { recursive: true });
});

test('what a later release brings is added to what is there, once, and an earlier one goes on beside it', async () => {
  const directory = await laterRelease('create table brought_later (n integer)');
  expect(await pendingMigrations(database, directory)).toMatchObject([{ version: later, name: laterName }]);
  expect(await migrate(database, { directory })).toMatchObject([{ version: later }]);
  await database.rows(unpreparedStatement('insert into brought_later values (1)'));
  expect(await migrate(database, { directory })).toEqual([]);
  expect([await pendingMigrations(database), await migrate(database)]).toEqual([[], []]);
});

test('a database whose schema is none of this program’s history is refused, and left as it is', async () => {
  const name = (await readdir('schema')).sort()[1]!.replace('.sql', '');
  const call = (from: string, to: string) =>
    database.rows(unpreparedStatement('update schema_migrations set name = $2 where name = $1'), [from, to]);
  const directory = await laterRelease('create table brought_later (n integer)');
  await call(name, '0002-of-old');
  const refusal = new ForeignSchemaError(
    `The database has a schema from before the first release (0002-of-old instead of ${name}), which nothing brings up to date: begin with a new database, or another data directory.`,
  );
  await expect(migrate(database, { directory })).rejects.toEqual(refusal);
  await expect(pendingMigrations(database)).rejects.toEqual(refusal);
  await call('0002-of-old', name);
  expect(await pendingMigrations(database, directory)).toMatchObject([{ version: later }]);
});

const locking = 'alter table recipients add column brought_later integer';

test('a migration whose tables are being read waits for them, in tries between which no other statement is held up', async () => {
  const directory = await laterRelease(`lock table messages, recipients; ${locking}`);
  const clock = createManualClock();
  const reader = openDatabase({ address: address, connectionsMax: 2 });
  const { applied } = await reader.transaction(async (reading) => {
    await reading.rows(unpreparedStatement('lock table recipients in access share mode'));
    const migrated = migrate(database, { clock, directory }).then(
      (migrations) => migrations,
      (cause: unknown) => cause,
    );
    await Promise.race([clock.whenWaiting(1), migrated]);
    // Writers get through now, also one that holds a lock which the migration wants and waits for another.
    await reading.rows(unpreparedStatement('lock table messages in row exclusive mode nowait'));
    return { applied: migrated };
  });
  clock.advance(3_000);
  expect(await applied).toMatchObject([{ version: later }]);
  await database.rows(unpreparedStatement('alter table recipients drop column brought_later'));
  await reader.close();
});

test('a migration that gets no lock for two minutes says which it is and who is in the way', async () => {
  const directory = await laterRelease(locking);
  const clock = createManualClock();
  const backup = openDatabase({
    address: address,
    connectionsMax: 1,
    applicationName: 'nightly backup',
  });
  await backup.transaction(async (reading) => {
    await reading.rows(unpreparedStatement('lock table recipients in access share mode'));
    const failed = migrate(database, { clock, directory }).catch((cause: unknown) => cause);
    await Promise.race([clock.whenWaiting(1), failed]);
    clock.advance(120_000);
    expect(await failed).toMatchObject({
      message: expect.stringMatching(
        /^Migration 0900-later waits for a lock .*process \d+ \(nightly backup\)/,
      ) as unknown,
    });
  });
  await backup.close();
  expect(await migrate(database, { directory })).toMatchObject([{ version: later }]);
  await database.rows(unpreparedStatement('alter table recipients drop column brought_later'));
});
