import { randomBytes } from 'node:crypto';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import pg from 'pg';
import { createApiKey, createOrganization, updateOrganization } from '../src/accounts/accounts.ts';
import { sandboxDomain, verifyByOperator } from '../src/domains/domains.ts';
import { systemClock } from '../src/platform/clock.ts';
import { createIds } from '../src/platform/ids.ts';
import { type Database, openDatabase, unpreparedStatement } from '../src/platform/postgres/database.ts';
import { startEmbeddedPostgres } from '../src/platform/postgres/embedded.ts';
import { migrate } from '../src/platform/postgres/migrate.ts';
import type { Secrets } from '../src/platform/secrets.ts';
import { takeUpTestSecret } from '../test/support/taken-up-secret.ts';
import { cleanUpWhenInterrupted, killAll } from './processes.ts';

/** A fresh installation in full durability, with an organization that may send as much as it likes. */
export type BenchInstallation = {
  dataDirectory: string;
  database: Database;
  organizationId: string;
  key: string;
  secrets: Secrets;
  /** A connection of the plain driver, for baselines. */
  connectPlainly: () => Promise<pg.Client>;
  /** Ends all child processes, stops PostgreSQL and removes its files; a second call changes nothing. */
  remove: () => Promise<void>;
};

export type BenchInstallationOptions = {
  /** Whether mail of its domain is signed. */
  isSigned?: boolean;
  /** Of PostgreSQL, in addition to those of the program. */
  settings?: Record<string, string>;
};

export async function createBenchInstallation({
  isSigned = false,
  settings = {},
}: BenchInstallationOptions = {}): Promise<BenchInstallation> {
  const dataDirectory = await mkdtemp(path.join(os.tmpdir(), 'postillion-bench-'));
  // As root, PostgreSQL runs as another user, who has to pass here.
  await chmod(dataDirectory, 0o711);
  const postgres = await startEmbeddedPostgres({ dataDirectory, settings });
  const database = openDatabase({ address: postgres.connection, connectionsMax: 2 });
  await migrate(database);

  // Where the processes that are measured look for it.
  const secret = randomBytes(32).toString('hex');
  await writeFile(path.join(dataDirectory, 'secret'), secret, { mode: 0o600 });
  const tools = {
    database,
    clock: systemClock,
    newId: createIds(systemClock),
    secrets: await takeUpTestSecret(database, secret),
  };
  const { id: organizationId } = await createOrganization(tools, 'Benchmark');
  await updateOrganization(tools, organizationId, { requestsPerWindow: 2_000_000_000 });
  await verifyByOperator(tools, { organizationId, name: sandboxDomain });
  if (!isSigned) {
    await database.rows(
      unpreparedStatement(
        'update domains set dkim_selector = null, dkim_public_key = null, dkim_private_key_sealed = null',
      ),
    );
  }
  const { key } = await createApiKey(tools, {
    organizationId,
    name: 'Benchmark',
    scopes: ['full_access'],
    expiresAt: null,
  });
  let removal: Promise<void> | null = null;
  const remove = () => {
    removal ??= (async () => {
      // PostgreSQL does not stop while another process looks after it.
      await killAll();
      await database.close();
      await postgres.stop();
      await rm(dataDirectory, { recursive: true, force: true });
    })();
    return removal;
  };
  cleanUpWhenInterrupted(remove);
  return {
    dataDirectory,
    database,
    organizationId,
    key,
    secrets: tools.secrets,
    connectPlainly: async () => {
      const client = new pg.Client({ ...postgres.connection, port: 5432, ssl: false });
      await client.connect();
      return client;
    },
    remove,
  };
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((first, second) => first - second);
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
}
