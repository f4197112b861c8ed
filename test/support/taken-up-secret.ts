import type { Database } from '../../src/platform/postgres/database.ts';
import { takeUpSecret } from '../../src/platform/secret-keys.ts';
import { createSecrets, deriveDataKey, type Secrets } from '../../src/platform/secrets.ts';

/** That of the databases that tests clone, for programs that are started on one. */
export const testSecret = 'a secret of the tests, and of nothing else';

/**
 * Makes a secret that of a database, as the first start of a program does, and returns what it seals and hashes by: that of
 * `createSecrets`, so that a test which has the secret needs no more than that.
 */
export async function takeUpTestSecret(database: Database, secret: string = testSecret): Promise<Secrets> {
  const taken = { secret, bytes: deriveDataKey(secret), at: new Date(0) };
  await database.transaction((transaction) => takeUpSecret(transaction, taken));
  return createSecrets(secret);
}
