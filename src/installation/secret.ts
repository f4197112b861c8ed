import { hasOrganizations } from '../accounts/accounts.ts';
import { type Config, ConfigError } from '../config.ts';
import { now } from '../platform/clock.ts';
import { type RunningChore, startChore } from '../platform/queue/chore.ts';
import {
  newDataKeyBytes,
  type OpenedKeys,
  openSealedKeys,
  readSealedKeys,
  type SealedKeys,
  takeUpSecret,
} from '../platform/secret-keys.ts';
import { createKeyRing, type DataKey, type KeyRing, secretLengthMin } from '../platform/secrets.ts';
import type { Foundation } from './foundation.ts';
import { makeSecretFile, readSecretFile, secretFileOf } from './secret-file.ts';

/**
 * Finds out whether the secret at hand is that of the database, before anything is done with it. Under another secret
 * no suppressed address would be recognised, so that people who opted out would be written to: an installation whose
 * secret does not fit does not start.
 */

export type SecretCondition =
  | { kind: 'fits'; opened: OpenedKeys; sealed: SealedKeys[] }
  /** Nothing was ever sealed or hashed here: the first start takes up a secret. */
  | { kind: 'unused' }
  | { kind: 'lost' | 'wrong'; problem: string };

/** Looks, and changes nothing. The schema may be missing. */
export async function examineSecret(foundation: Foundation): Promise<SecretCondition> {
  const { config, database } = foundation;
  // Before the keys are read: whoever makes the first organization has taken up a secret before.
  const isUsed = await isInUse(database);
  const { sealed, secrets, opened } = await openStoredKeys(foundation);
  if (opened !== null) return { kind: 'fits', opened, sealed };
  if (sealed.length > 0)
    return secrets.length === 0
      ? { kind: 'lost', problem: lostSecret(config) }
      : { kind: 'wrong', problem: wrongSecret(config) };
  return isUsed ? { kind: 'lost', problem: lostKeys } : { kind: 'unused' };
}

/**
 * The keys of the installation; at the first start its secret is taken up, and made where the data directory is to
 * keep it. Throws a ConfigError, a sentence on what to do, if the secret is not that of the database or is lost.
 */
export async function openSecrets(foundation: Foundation): Promise<KeyRing> {
  const condition = await examineSecret(foundation);
  switch (condition.kind) {
    case 'fits':
      return openRing(foundation, condition.opened);
    case 'lost':
    case 'wrong':
      throw new ConfigError(condition.problem);
    case 'unused':
      return takeUp(foundation);
  }
}

async function takeUp(foundation: Foundation): Promise<KeyRing> {
  const { config, clock, database } = foundation;
  const [secret = await makeSecretFile(secretFileOf(config.dataDirectory))] = await secretsAtHand(config);
  const sealed = await database.transaction((transaction) =>
    takeUpSecret(transaction, { secret, bytes: newDataKeyBytes(), at: now(clock) }),
  );
  // Another process may have been first, with another secret.
  const opened = openSealedKeys(sealed, [secret]);
  if (opened === null) throw new ConfigError(wrongSecret(config));
  return openRing(foundation, opened);
}

function openRing(foundation: Foundation, { keys }: OpenedKeys): KeyRing {
  return createKeyRing(keys, foundation.clock.nowMs, () => readKeys(foundation));
}

/** Null where the secrets at hand open none any more. */
export async function readKeys(foundation: Foundation): Promise<DataKey[] | null> {
  const { opened } = await openStoredKeys(foundation);
  return opened?.keys ?? null;
}

/**
 * Keeps the keys of a running process up to date: an added key is read before anything is sealed under it. A
 * process whose secret was retired goes on with the keys that it has.
 */
export function watchSecretKeys(foundation: Foundation, ring: KeyRing): RunningChore {
  const { log } = foundation;
  return startChore(foundation, {
    name: 'secret keys',
    topic: 'secret_keys',
    work: async () => {
      const keys = await readKeys(foundation);
      if (keys !== null) ring.replaceKeys(keys);
      else
        log.error(
          'the secret of this process was retired: it continues with the keys that it knows, and will not start again without the new one',
        );
      return null;
    },
  });
}

/** Twice where nothing fits: the file and the rows may have been read before and after a rotation. */
const readingsMax = 2;

async function openStoredKeys({
  config,
  database,
}: Foundation): Promise<{ sealed: SealedKeys[]; secrets: string[]; opened: OpenedKeys | null }> {
  for (let reading = 1; ; reading += 1) {
    const sealed = await readSealedKeys(database);
    const secrets = await secretsAtHand(config);
    const opened = openSealedKeys(sealed, secrets);
    if (opened !== null || sealed.length === 0 || reading === readingsMax) return { sealed, secrets, opened };
  }
}

/** The one that is given, and during a rotation the next one; or the one in the file. */
export async function secretsAtHand(config: Config): Promise<string[]> {
  if (config.secret !== null)
    return [config.secret, ...(config.nextSecret === null ? [] : [config.nextSecret])];
  const file = secretFileOf(config.dataDirectory);
  const secret = await readSecretFile(file);
  if (secret !== null && secret.length < secretLengthMin)
    throw new ConfigError(`${file.path} holds no secret: put it back from a backup.`);
  return secret === null ? [] : [secret];
}

/** Whether there is an organization, and with it whatever may have been stored for it. */
async function isInUse(database: Foundation['database']): Promise<boolean> {
  const [table] = await database.rows<{ exists: boolean }>({
    text: "select to_regclass('organizations') is not null as exists",
  });
  return table?.exists === true && (await hasOrganizations(database));
}

const consequence = 'Nothing is sent without it, since addresses that opted out would not be recognised.';

function wrongSecret(config: Config): string {
  return config.secret === null
    ? `The secret in ${secretFileOf(config.dataDirectory).path} is not that of this database: put back the one that belongs to it, from the same backup. ${consequence}`
    : `POSTILLION_SECRET is not the secret of this database: set it to the one that the database was used with. ${consequence}`;
}

function lostSecret(config: Config): string {
  return `${secretFileOf(config.dataDirectory).path} is missing, which holds the secret of this database: put it back from a backup, or set POSTILLION_SECRET to what it held. ${consequence}`;
}

/** Only somebody who deletes them by hand can do that. New ones would recognise no opt-out. */
const lostKeys = `The database has organizations, and none of the keys that belong to them: restore it from a backup. ${consequence}`;
