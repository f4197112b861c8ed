import { chmod, mkdtemp, readdir, rm } from 'node:fs/promises';
import path from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { databasesDirectory } from '../../../test/support/temporary-directory.ts';
import { readTar, type TarEntry, tarFile } from '../tar.ts';
import { startBaseBackup } from './base-backup.ts';
import { type Database, openDatabase, unpreparedStatement } from './database.ts';
import { type EmbeddedPostgres, startEmbeddedPostgres } from './embedded.ts';
import { restoreCluster } from './embedded-restore.ts';

/** So little that each checkpoint removes what is older. */
const settings = { fsync: 'off', min_wal_size: '32MB', max_wal_size: '32MB', wal_recycle: 'off' };

let directory: string;
const ends: (() => Promise<unknown>)[] = [];

beforeEach(async () => {
  directory = await mkdtemp(path.join(databasesDirectory(), 'postillion-base-'));
  await chmod(directory, 0o711);
});
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
  await rm(directory, { recursive: true, force: true });
});

async function start(name: string): Promise<{ postgres: EmbeddedPostgres; database: Database }> {
  const postgres = await startEmbeddedPostgres({ dataDirectory: path.join(directory, name), settings });
  ends.push(postgres.stop);
  const database = openDatabase({ address: postgres.connection, connectionsMax: 2 });
  ends.push(database.close);
  return { postgres, database };
}

const run = <Row>(database: Database, text: string) => database.rows(unpreparedStatement<Row>(text));

test('a copy that is slower than the log is whole, and has what was written before its end', async () => {
  const { postgres, database } = await start('source');
  await run(database, 'create table numbers as select generate_series(1, 1000) as number');
  const copy = await startBaseBackup(postgres.connection);
  const restoring = restoreCluster({
    dataDirectory: path.join(directory, 'target'),
    entries: (async function* () {
      let isFirst = true;
      for await (const entry of readTar(copy as AsyncIterable<Buffer>)) {
        yield entry;
        if (!isFirst) continue;
        isFirst = false;
        // The copy has begun, and waits for its reader: more log than is kept goes by, and is removed.
        for (let round = 1; round <= 6; round += 1) {
          await run(
            database,
            `insert into numbers select generate_series(${round} * 1000 + 1, ${round} * 1000 + 1000)`,
          );
          await run(database, 'select pg_switch_wal()');
          await run(database, 'checkpoint');
        }
      }
    })(),
    beforePlaced: () => Promise.resolve(),
  });
  await restoring;
  const slots = await run(database, 'select from pg_replication_slots');
  expect(slots).toEqual([]);

  const restored = await start('target');
  const [found] = await run<{ count: number; sum: number }>(
    restored.database,
    'select count(*) as count, sum(number) as sum from numbers',
  );
  expect(found).toEqual({ count: 7_000, sum: (7_000 * 7_001) / 2 });
});

test('a copy whose server goes away fails, and is not taken for whole', async () => {
  const { postgres, database } = await start('source');
  const copy = await startBaseBackup(postgres.connection);
  await run(
    database,
    `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'postillion-backup'`,
  );
  await expect(
    (async () => {
      for await (const { name } of readTar(copy as AsyncIterable<Buffer>)) expect(name).not.toBe('');
    })(),
  ).rejects.toThrow(/terminat/i);
});

async function* entriesOf(files: Record<string, string>): AsyncGenerator<TarEntry> {
  const archive = Object.entries(files).map(([name, text]) => tarFile(name, Buffer.from(text), new Date(0)));
  const source = (async function* () {
    yield await Promise.resolve(Buffer.concat([...archive, Buffer.alloc(1_024)]));
  })();
  yield* readTar(source);
}

test.each([
  { files: { '../outside': '', PG_VERSION: '18' }, problem: 'is no name of a file of PostgreSQL' },
  { files: { '/tmp/outside': '', PG_VERSION: '18' }, problem: 'is no name of a file of PostgreSQL' },
  { files: { PG_VERSION: '9' }, problem: 'it is of PostgreSQL 9, and this installation has' },
])('files that do not belong there are not put there: $problem', async ({ files, problem }) => {
  const dataDirectory = path.join(directory, 'target');
  const restoring = restoreCluster({
    dataDirectory,
    entries: entriesOf(files),
    beforePlaced: () => Promise.reject(new Error('placed')),
  });
  await expect(restoring).rejects.toThrow(problem);
  const left = await readdir(path.join(dataDirectory, 'postgres'));
  expect(left.filter((name) => name.startsWith('cluster'))).toEqual([]);
});

test('a cluster that is there is not replaced', async () => {
  const { postgres } = await start('source');
  const restoring = restoreCluster({
    dataDirectory: path.join(directory, 'source'),
    entries: readTar((await startBaseBackup(postgres.connection)) as AsyncIterable<Buffer>),
    beforePlaced: () => Promise.resolve(),
  });
  await expect(restoring).rejects.toThrow('there is a database in');
});
