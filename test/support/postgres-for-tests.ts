/**
 * Set-up of a whole test run: one PostgreSQL, and in it a migrated template from which each test file clones its
 * own database (`createTestDatabase`). With TEST_DATABASE_URL the template is made in that server instead; two
 * runs at once on one such server would take the template from each other.
 */
import { chmod, lstat, mkdtemp, readdir, readFile, realpath, rm } from 'node:fs/promises';
import path from 'node:path';
import pg from 'pg';
import type { TestProject } from 'vitest/node';
import { type Database, type DatabaseAddress, openDatabase } from '../../src/platform/postgres/database.ts';
import { startEmbeddedPostgres } from '../../src/platform/postgres/embedded.ts';
import { migrate } from '../../src/platform/postgres/migrate.ts';
import { admitServingUser, servingUser } from '../../src/platform/postgres/serving-role.ts';
import { databasesDirectories, databasesDirectory } from './temporary-directory.ts';
import { keepErasedContacts } from './erased-contacts.ts';
import { plantNeighbour } from './neighbour.ts';
import { takeUpTestSecret } from './taken-up-secret.ts';
import { watchChanges } from './untold-changes.ts';
import { addressOf, clientConfigOf, sharedTemplateName, templateName } from './test-database.ts';

declare module 'vitest' {
  // eslint-disable-next-line @typescript-eslint/consistent-type-definitions -- only interfaces can be merged into
  export interface ProvidedContext {
    /** The server of this run, at a database from which others can be created. */
    databaseServer: DatabaseAddress;
  }
}

const directoryPrefix = 'postillion-tests-';

export default async function startPostgresForTests(project: TestProject): Promise<() => Promise<void>> {
  const url = process.env.TEST_DATABASE_URL;
  if (url !== undefined && url !== '') {
    await createTemplate({ url });
    project.provide('databaseServer', { url });
    return () => dropTemplate({ url });
  }

  await removeDeadRuns();
  const directory = await mkdtemp(path.join(databasesDirectory(), `${directoryPrefix}${process.pid}-`));
  // As root, PostgreSQL runs as another user, who has to pass here.
  await chmod(directory, 0o711);
  try {
    // Nothing here has to outlive the machine.
    const unsafe = { fsync: 'off', full_page_writes: 'off', synchronous_commit: 'off' };
    // A database that is made is copied file by file, and not through the log as well.
    const unlogged = { wal_level: 'minimal', max_wal_senders: '0', max_wal_size: '256MB' };
    // Each database that is dropped has all of the buffers looked through, which are large on a large machine.
    const small = { shared_buffers: '128MB' };
    // What plans are made of must not depend on when something last looked at a table: a test that needs statistics
    // analyzes. Nor should it hold a template that is to be cloned.
    const quiet = { autovacuum: 'off' };
    // Each file has a pool or two, and some start four programs.
    const wide = { max_connections: '300' };
    // Neither the day nor the hour begins when those of UTC do: a statement that leaves a zone to the session is noticed.
    const elsewhere = { timezone: 'Pacific/Chatham' };
    const settings = { ...unsafe, ...unlogged, ...small, ...quiet, ...wide, ...elsewhere };
    const postgres = await startEmbeddedPostgres({ dataDirectory: directory, settings });
    const teardown = async () => {
      await postgres.stop();
      await rm(directory, { recursive: true, force: true, maxRetries: 3 });
    };
    try {
      await createTemplate(postgres.connection);
    } catch (cause) {
      await teardown();
      throw cause;
    }
    project.provide('databaseServer', postgres.connection);
    return teardown;
  } catch (cause) {
    await rm(directory, { recursive: true, force: true, maxRetries: 3 });
    throw cause;
  }
}

async function createTemplate(server: DatabaseAddress): Promise<void> {
  await dropTemplate(server);
  await runOn(server, `create database ${templateName}`);
  await prepare(addressOf(server, templateName), async (database) => {
    await migrate(database);
    await admitServingUser(database);
    await takeUpTestSecret(database);
  });
  // The embedded PostgreSQL of the tests asks for none.
  if ('url' in server) await runOn(server, `alter role ${servingUser} password '${servingUser}'`);
  await runOn(server, `create database ${sharedTemplateName} template ${templateName}`);
  await prepare(addressOf(server, sharedTemplateName), plantNeighbour);
  await prepare(addressOf(server, sharedTemplateName), keepErasedContacts);
  await prepare(addressOf(server, sharedTemplateName), watchChanges);
}

async function prepare(
  address: DatabaseAddress,
  work: (database: Database) => Promise<unknown>,
): Promise<void> {
  const database = openDatabase({ address, connectionsMax: 1 });
  try {
    await work(database);
  } finally {
    await database.close();
  }
}

async function dropTemplate(server: DatabaseAddress): Promise<void> {
  for (const name of [sharedTemplateName, templateName])
    await runOn(server, `drop database if exists ${name} (force)`);
}

async function runOn(server: DatabaseAddress, text: string): Promise<void> {
  const client = new pg.Client(clientConfigOf(server));
  await client.connect();
  try {
    await client.query(text);
  } finally {
    await client.end();
  }
}

/** A run that was killed has left its PostgreSQL running, and its directory named after its process. */
export async function removeDeadRuns(): Promise<void> {
  const parents = databasesDirectories();
  const listed = await Promise.all(
    parents.map(async (parent) => (await readdir(parent)).map((name) => path.join(parent, name))),
  );
  for (const directory of listed.flat()) {
    const pid = Number(new RegExp(`^${directoryPrefix}(\\d+)-`).exec(path.basename(directory))?.[1]);
    if (!Number.isSafeInteger(pid) || isAlive(pid)) continue;
    if ((await lstat(directory)).uid !== process.getuid?.()) continue;
    await killServerOf(directory);
    await removeWithLinks(directory);
  }
}

async function killServerOf(directory: string): Promise<void> {
  const pidFile = await readFile(path.join(directory, 'postgres/cluster/postmaster.pid'), 'utf8').catch(
    () => '',
  );
  const [pid, cluster] = pidFile.split('\n');
  // The number may have been given to another process since; only a server names this directory in its arguments.
  const command = await readFile(`/proc/${Number(pid)}/cmdline`, 'utf8').catch(() => '');
  if (cluster !== undefined && command.split('\0').includes(cluster)) process.kill(Number(pid), 'SIGQUIT');
}

/** Sockets, or as root the files, may have been put elsewhere. */
async function removeWithLinks(directory: string): Promise<void> {
  for (const link of ['postgres/sockets', 'postgres']) {
    const target = await realpath(path.join(directory, link)).catch(() => null);
    if (target !== null) await rm(target, { recursive: true, force: true, maxRetries: 3 });
  }
  await rm(directory, { recursive: true, force: true, maxRetries: 3 });
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (cause) {
    // Another user's process is alive as well.
    return (cause as NodeJS.ErrnoException).code !== 'ESRCH';
  }
}
