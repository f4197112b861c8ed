/** A migrated database for a test file, or for a test: cheap, because it is cloned, and real. */
import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, inject } from 'vitest';
import {
  type Database,
  type DatabaseAddress,
  type DatabaseOptions,
  openDatabase,
  sqlState,
} from '../../src/platform/postgres/database.ts';
import { servingUser } from '../../src/platform/postgres/serving-role.ts';

export const templateName = 'postillion_template';
/** The same with a hostile neighbour (neighbour.ts). */
export const sharedTemplateName = 'postillion_shared_template';

/** Autovacuum may be looking at the template; it is asked to go and does so within a second. */
const cloneAttemptsMax = 50;
const clonePauseMs = 100;

const objectInUse = '55006';

export type TestDatabase = {
  /** For `openDatabase`, and for child processes. */
  address: DatabaseAddress;
  /** Drops it, and ends the sessions that are still connected to it. */
  drop: () => Promise<void>;
};

export type TestDatabaseUse = Partial<Omit<DatabaseOptions, 'address'>> & {
  hasNeighbour?: boolean;
  /** For tests that need an empty one each. */
  isForEachTest?: boolean;
};

/**
 * Makes a database before all tests of a file or of a block, or before each of them, hands it over opened, and closes
 * and drops it after them. Nothing connects until it is used, so that a test may take no more than the address; what a
 * test starts on it is to be ended by hooks that come later in the file, since those run earlier. `connectionsMax` is 4
 * if nothing is said.
 */
export function useTestDatabase(
  { hasNeighbour = false, isForEachTest = false, connectionsMax = 4, ...options }: TestDatabaseUse,
  onOpened: (opened: { database: Database; address: DatabaseAddress }) => void,
): void {
  let testDatabase: TestDatabase | undefined;
  let database: Database | undefined;
  const [before, after] = isForEachTest ? [beforeEach, afterEach] : [beforeAll, afterAll];
  before(async () => {
    testDatabase = await createTestDatabase({ hasNeighbour });
    const { address } = testDatabase;
    database = openDatabase({ ...options, address, connectionsMax });
    onOpened({ database, address });
  });
  after(async () => {
    await database?.close();
    await testDatabase?.drop();
  });
}

/**
 * Clones the migrated template under a name that no other test uses. Takes 40 to 80 ms. With a neighbour there is an
 * organization already, whose data clash with those of the test.
 */
export async function createTestDatabase({ hasNeighbour = false } = {}): Promise<TestDatabase> {
  const server = inject('databaseServer');
  const name = `test_${process.pid}_${randomBytes(6).toString('hex')}`;
  const template = hasNeighbour ? sharedTemplateName : templateName;
  await withClient(server, (client) => clone(client, name, template));
  return {
    address: addressOf(server, name),
    drop: () =>
      withClient(server, async (client) => {
        await client.query(`drop database if exists ${name} (force)`);
      }),
  };
}

async function clone(client: pg.Client, name: string, template: string): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      await client.query(`create database ${name} template ${template} strategy file_copy`);
      return;
    } catch (cause) {
      if (sqlState(cause) !== objectInUse || attempt === cloneAttemptsMax) throw cause;
    }
    await delay(clonePauseMs);
  }
}

/** The same server, another database. */
export function addressOf(server: DatabaseAddress, database: string): DatabaseAddress {
  if (!('url' in server)) return { ...server, database };
  const url = new URL(server.url);
  url.pathname = `/${database}`;
  return { url: url.href };
}

/** The same database, as the user that serves requests. */
export function addressOfRequests(address: DatabaseAddress): DatabaseAddress {
  if (!('url' in address)) return { ...address, user: servingUser };
  const url = new URL(address.url);
  return { url: Object.assign(url, { username: servingUser, password: servingUser }).href };
}

/** For `DATABASE_URL`. */
export function databaseUrlOf(address: DatabaseAddress): string {
  if ('url' in address) return address.url;
  return `postgres://${address.user}@/${address.database}?host=${encodeURIComponent(address.host)}`;
}

/** What `pg.Client` takes. Port and TLS are given for the socket, or the environment's would count. */
export function clientConfigOf(address: DatabaseAddress): pg.ClientConfig {
  return 'url' in address ? { connectionString: address.url } : { ...address, port: 5432, ssl: false };
}

async function withClient(
  server: DatabaseAddress,
  work: (client: pg.Client) => Promise<void>,
): Promise<void> {
  const client = new pg.Client(clientConfigOf(server));
  await client.connect();
  try {
    await work(client);
  } finally {
    await client.end();
  }
}
