import { afterAll, expect, test } from 'vitest';
import pg from 'pg';
import { clientConfigOf, createTestDatabase, type TestDatabase } from './test-database.ts';

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
