import { hasOrganizations } from '../accounts/accounts.ts';
import { countRecognisedSuppressions } from '../audience/audience.ts';
import { type Config, ConfigError } from '../config.ts';
import { countOpenDomainKeys } from '../domains/domains.ts';
import { now } from '../platform/clock.ts';
import { type RunningChore, startChore } from '../platform/queue/chore.ts';
import {
  newDataKeyBytes,
  type OpenedKeys,
  openSealedKeys,
  readSealedKeys,
  type SealedKeys,
  secretKeysChannel,
  takeUpSecret,
} from '../platform/secret-keys.ts';
import {
  createKeyRing,
  createSecrets,
  deriveDataKey,
  type KeyRing,
  secretLengthMin,
} from '../platform/secrets.ts';
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
  /** In use since before keys were kept in the database; the secret, if there is one to try it on, opens it. */
  | { kind: 'not_taken_up'; secret: string; misfits: number }
  | { kind: 'lost' | 'wrong'; problem: string };

/** Looks, and changes nothing. The schema may be missing, or be that of an older release. */
export async function examineSecret(foundation: Foundation): Promise<SecretCondition> {
  const { config } = foundation;
  const { sealed, secrets, opened } = await openStoredKeys(foundation);
  const [secret] = secrets;
  if (opened !== null) return { kind: 'fits', opened, sealed };
  if (secret === undefined && sealed.length > 0) return { kind: 'lost', problem: lostSecret(config) };
  if (sealed.length > 0) return { kind: 'wrong', problem: wrongSecret(config) };
  if (!(await isInUse(foundation))) return { kind: 'unused' };
  if (secret === undefined) return { kind: 'lost', problem: lostSecret(config) };
  const { recognised, misfits } = await tryOnWhatIsStored(foundation, secret);
  return recognised === 0 && misfits > 0
    ? { kind: 'wrong', problem: wrongSecret(config) }
    : { kind: 'not_taken_up', secret, misfits };
}

/**
 * The keys of the installation; at the first start its secret is taken up, and made where the data directory is to
 * keep it. Throws a ConfigError, a sentence on what to do, if the secret is not that of the database or is lost.
 */
export async function openSecrets(foundation: Foundation): Promise<KeyRing> {
  const { clock, log } = foundation;
  const condition = await examineSecret(foundation);
  switch (condition.kind) {
    case 'fits':
      return createKeyRing(condition.opened.keys, clock.nowMs);
    case 'lost':
    case 'wrong':
      throw new ConfigError(condition.problem);
    case 'not_taken_up':
      if (condition.misfits > 0) {
        log.warn(
          { misfits: condition.misfits },
          'some of what is stored was sealed or hashed under another secret, and stays unreadable',
        );
      }
      return takeUp(foundation, condition.secret, deriveDataKey(condition.secret));
    case 'unused': {
      const [secret = await makeSecretFile(secretFileOf(foundation.config.dataDirectory))] =
        await secretsAtHand(foundation.config);
      return takeUp(foundation, secret, newDataKeyBytes());
    }
  }
}

async function takeUp(foundation: Foundation, secret: string, bytes: Buffer): Promise<KeyRing> {
  const { config, clock, database } = foundation;
  const sealed = await database.transaction((transaction) =>
    takeUpSecret(transaction, { secret, bytes, at: now(clock) }),
  );
  // Another process may have been first, with another secret.
  const opened = openSealedKeys(sealed, [secret]);
  if (opened === null) throw new ConfigError(wrongSecret(config));
  return createKeyRing(opened.keys, clock.nowMs);
}

/**
 * Keeps the keys up to date in a process that runs: one that was added meanwhile is read before anybody uses it. A
 * process whose secret was retired goes on with the keys that it has.
 */
export function watchSecretKeys(foundation: Foundation, ring: KeyRing): RunningChore {
  const { log } = foundation;
  return startChore(foundation, {
    name: 'secret keys',
    channel: secretKeysChannel,
    work: async () => {
      const { opened } = await openStoredKeys(foundation);
      if (opened !== null) ring.replaceKeys(opened.keys);
      else
        log.error(
          'the secret of this process was retired: it goes on with the keys that it knows, and will not start again without the new one',
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
async function isInUse({ database }: Foundation): Promise<boolean> {
  const [table] = await database.rows<{ exists: boolean }>({
    text: "select to_regclass('organizations') is not null as exists",
  });
  return table?.exists === true && (await hasOrganizations(database));
}

/** Of a sample of what was stored under a secret, how much belongs to this one. */
async function tryOnWhatIsStored(
  { database }: Foundation,
  secret: string,
): Promise<{ recognised: number; misfits: number }> {
  const secrets = createSecrets(secret);
  const domainKeys = await countOpenDomainKeys(database, secrets);
  const suppressions = await countRecognisedSuppressions(database, secrets);
  const recognised = domainKeys.recognised + suppressions.recognised;
  return { recognised, misfits: domainKeys.tried + suppressions.tried - recognised };
}

const consequence = 'Nothing is sent without it, since nobody who opted out would be recognised.';

function wrongSecret(config: Config): string {
  return config.secret === null
    ? `The secret in ${secretFileOf(config.dataDirectory).path} is not that of this database: put back the one that belongs to it, from the same backup. ${consequence}`
    : `POSTILLION_SECRET is not the secret of this database: set it to the one that the database was used with. ${consequence}`;
}

function lostSecret(config: Config): string {
  return `${secretFileOf(config.dataDirectory).path} is missing, which holds the secret of this database: put it back from a backup, or set POSTILLION_SECRET to what it held. ${consequence}`;
}
