import { afterAll, describe, expect, test } from 'vitest';
import pg from 'pg';
import { type Database, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { clientConfigOf, createTestDatabase, type TestDatabase, useTestDatabase } from './test-database.ts';

const databases: TestDatabase[] = [];

afterAll(async () => {
  for (const database of databases) await database.drop();
});

test('eight databases cloned at once are migrated, and none sees what another holds', async () => {
  databases.push(...(await Promise.all(Array.from({ length: 8 }, createTestDatabase))));
  const seen = await Promise.all(
    databases.map(async ({ address }) => {
      const client = new pg.Client(clientConfigOf(address));
      await client.connect();
      const { rows } = await client.query<{ isMigrated: boolean; hasMark: boolean }>(
        `select to_regclass('schema_migrations') is not null as "isMigrated", to_regclass('mark') is not null as "hasMark"`,
      );
      await client.query('create table mark ()');
      await client.end();
      return rows[0];
    }),
  );
  expect(seen).toEqual(Array.from({ length: 8 }, () => ({ isMigrated: true, hasMark: false })));
});

describe('a database for each test', () => {
  const used: string[] = [];
  let lasting: Database;
  useTestDatabase({ connectionsMax: 1 }, (opened) => {
    lasting = opened.database;
  });
  let database: Database;
  useTestDatabase({ connectionsMax: 1, isForEachTest: true }, (opened) => {
    database = opened.database;
  });

  test.each(['first', 'second'])('is empty for the %s', async () => {
    const [seen] = await database.rows(
      unpreparedStatement<{ name: string; isEmpty: boolean }>(
        `select current_database() as name, to_regclass('mark') is null as "isEmpty"`,
      ),
    );
    expect(seen!.isEmpty).toBe(true);
    await database.rows(unpreparedStatement('create table mark ()'));
    used.push(seen!.name);
  });

  test('is gone when that is over', async () => {
    expect(used).toHaveLength(2);
    const statement = unpreparedStatement('select from pg_database where datname = any ($1)');
    expect(await lasting.rows(statement, [used])).toEqual([]);
  });
});
