import { expect, test } from 'vitest';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { type Database, openDatabase, unpreparedStatement, type DatabaseAddress } from './database.ts';
import { migrate, pendingMigrations } from './migrate.ts';
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

test('what a node from before migration 55 grants again is taken back by the next start', async () => {
  const mayChange = async () => {
    const [row] = await database.rows(
      unpreparedStatement<{ may: boolean }>(
        `select has_table_privilege('postillion_tenant', 'organizations', 'update') as may`,
      ),
    );
    return row?.may;
  };
  await database.rows(
    unpreparedStatement('grant insert, update, delete on organizations to postillion_tenant'),
  );
  expect(await mayChange()).toBe(true);
  await migrate(database);
  expect(await mayChange()).toBe(false);
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

/** Applied by hand: as if the last release had not known it. */
async function forgetPartitionsByKey(): Promise<void> {
  await database.rows(unpreparedStatement('delete from schema_migrations where version = 22'));
  await database.rows(unpreparedStatement('drop procedure create_month_partition'));
}

test('a migration whose tables are being read waits for them, in tries between which no other statement is held up', async () => {
  await forgetPartitionsByKey();
  const clock = createManualClock();
  const reader = openDatabase({ address: address, connectionsMax: 2 });
  const { applied } = await reader.transaction(async (reading) => {
    await reading.rows(unpreparedStatement('lock table recipients in access share mode'));
    const migrated = migrate(database, clock).then(
      (migrations) => migrations,
      (cause: unknown) => cause,
    );
    await Promise.race([clock.whenWaiting(1), migrated]);
    // Writers get through now, also one that holds a lock which the migration wants and waits for another.
    await reading.rows(unpreparedStatement('lock table messages in row exclusive mode nowait'));
    return { applied: migrated };
  });
  clock.advance(3_000);
  expect(await applied).toMatchObject([{ version: 22 }]);
  await reader.close();
});

test('a migration that gets no lock for two minutes says which it is and who is in the way', async () => {
  await forgetPartitionsByKey();
  const clock = createManualClock();
  const backup = openDatabase({
    address: address,
    connectionsMax: 1,
    applicationName: 'nightly backup',
  });
  await backup.transaction(async (reading) => {
    await reading.rows(unpreparedStatement('lock table recipients in access share mode'));
    const failed = migrate(database, clock).catch((cause: unknown) => cause);
    await Promise.race([clock.whenWaiting(1), failed]);
    clock.advance(120_000);
    expect(await failed).toMatchObject({
      message: expect.stringMatching(
        /^Migration 0022-partitions-by-key waits for a lock .*process \d+ \(nightly backup\)/,
      ) as unknown,
    });
  });
  await backup.close();
  expect(await migrate(database)).toMatchObject([{ version: 22 }]);
});
