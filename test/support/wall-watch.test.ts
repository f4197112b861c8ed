import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { expect, test } from 'vitest';
import { projectDirectory } from '../../src/config.ts';
import { type Database, statement, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { useTestDatabase } from './test-database.ts';
import { bareTextOf, outsideTheWall, watchTenantWall } from './wall-watch.ts';

let database: Database;
useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});

const read = unpreparedStatement('select id\n   from contacts -- of all\n   limit 1');

test('a statement outside of the wall on a table of organizations is reported, wherever it is run', async () => {
  const watch = await watchTenantWall(database);
  await watch.database.asOrganizations([], (transaction) => transaction.rows(read));
  await watch.database.rows(unpreparedStatement('select 1 as contacts from workers'));
  await watch.database.transaction((transaction) =>
    transaction.asOrganizations([], () => transaction.rows(read)),
  );
  expect(watch.breaches()).toEqual([]);

  await watch.database.transaction(async (transaction) => {
    await transaction.asOrganizations([], () => Promise.resolve());
    await transaction.rows(read);
  });
  expect(watch.breaches()).toEqual(['select id from contacts limit 1']);
  await watch.database
    .transactionByIndex((transaction) =>
      transaction
        .rows(statement('a_statement_of_tests', 'select from lists join segments using (id) limit 0'))
        .catch(() => undefined),
    )
    .catch(() => undefined);
  await watch.database.rows(unpreparedStatement('delete from templates where false'));
  expect(watch.breaches().slice(1)).toEqual(['a_statement_of_tests', 'delete from templates where false']);
});

test('every statement that is allowed to be outside of the wall is one of the program', async () => {
  const source = path.join(projectDirectory, 'src');
  const files = (await readdir(source, { recursive: true })).filter((file) => file.endsWith('.ts'));
  const texts = await Promise.all(files.map((file) => readFile(path.join(source, file), 'utf8')));
  const all = bareTextOf(texts.join('\n'));
  // One statement serves two columns.
  const asWritten = (known: string) => known.replace(/\b(compute_at|windows_due_at)\b/, '${column}');
  const isThere = (known: string) => all.includes(known) || all.includes(asWritten(known));
  expect(Object.keys(outsideTheWall).filter((known) => !isThere(known))).toEqual([]);
});
