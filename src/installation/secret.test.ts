/** What a start makes of the secret that it finds, in this process; test/journeys/secret.system.test.ts has the program. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { createOrganization } from '../accounts/accounts.ts';
import { addSuppressions, findSuppressed } from '../audience/audience.ts';
import { readConfig } from '../config.ts';
import { systemClock } from '../platform/clock.ts';
import { createResolver } from '../platform/dns/dns.ts';
import { createIds } from '../platform/ids.ts';
import { silentLog } from '../platform/log.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { readSealedKeys } from '../platform/secret-keys.ts';
import type { Secrets } from '../platform/secrets.ts';
import type { Foundation } from './foundation.ts';
import { instanceHostsOf } from './opening.ts';
import { openSecrets } from './secret.ts';
import { readSecretFile, secretFileOf } from './secret-file.ts';

const [own, another] = ['the own secret', 'another secret'].map((name) => name.padEnd(40, '.')) as [
  string,
  string,
];
const newId = createIds(systemClock);
const address = 'ann@example.com';

let database: Database;
let directory: string;

useTestDatabase({ isForEachTest: true }, (opened) => {
  database = opened.database;
});
beforeEach(async () => {
  await database.rows(unpreparedStatement('truncate secret_keys'));
  directory = await mkdtemp(path.join(tmpdir(), 'postillion-secret-'));
});
afterEach(() => rm(directory, { recursive: true }));

/** A process that has this secret, or none but what its data directory may hold. */
function foundation(secret: string | null): Foundation {
  const config = { ...readConfig({}), secret, dataDirectory: directory };
  const resolver = createResolver({ servers: [], clock: systemClock });
  resolver.close();
  return {
    config,
    database,
    clock: systemClock,
    newId,
    random: Math.random,
    log: silentLog,
    resolver,
    hosts: instanceHostsOf(config),
    close: () => Promise.resolve(),
  };
}

const anOrganization = async () =>
  (await createOrganization({ database, clock: systemClock, newId }, 'Own')).id;
const suppress = (secrets: Secrets, organizationId: string, suppressed = address) =>
  addSuppressions(database, { clock: systemClock, newId, secrets }, 'email', [
    { organizationId, address: suppressed, reason: 'unsubscribe' },
  ]);
const isSuppressed = async (secrets: Secrets, organizationId: string) => {
  const wanted = [{ organizationId, address }];
  const found = await findSuppressed(database, { clock: systemClock, secrets }, 'email', wanted);
  return [found.has(0)];
};

test('the first secret is taken up, and another one opens nothing from then on', async () => {
  const first = await openSecrets(foundation(own));
  const organizationId = await anOrganization();
  await suppress(first, organizationId);
  await expect(openSecrets(foundation(another))).rejects.toThrow(
    'POSTILLION_SECRET is not the secret of this database',
  );
  expect(await isSuppressed(await openSecrets(foundation(own)), organizationId)).toEqual([true]);
});

test('of two that start at once with different secrets one starts, and the other is refused', async () => {
  const started = await Promise.allSettled([own, another].map((secret) => openSecrets(foundation(secret))));
  expect(started.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
  await expect(openSecrets(foundation(started[0]!.status === 'fulfilled' ? another : own))).rejects.toThrow(
    'is not the secret of this database',
  );
});

test('a secret that was lost is not replaced by a new one', async () => {
  await openSecrets(foundation(null));
  const { path: file } = secretFileOf(directory);
  const kept = (await readSecretFile({ path: file }))!;
  await rm(file);
  await expect(openSecrets(foundation(null))).rejects.toThrow('is missing, which holds the secret');
  expect(await readSecretFile({ path: file })).toBeNull();
  await openSecrets(foundation(kept));
});

test('no new keys are made beside organizations whose keys are gone', async () => {
  await openSecrets(foundation(own));
  await anOrganization();
  await database.rows(unpreparedStatement('truncate secret_keys'));
  for (const secret of [own, another, null])
    await expect(openSecrets(foundation(secret))).rejects.toThrow('none of the keys that belong to them');
  expect(await readSealedKeys(database)).toEqual([]);
});
