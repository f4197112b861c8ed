import { hasOrganizations } from '../accounts/accounts.ts';
import { countRecognisedSuppressions, rehashSuppressions, sampleSuppressions } from '../audience/audience.ts';
import { type Config, ConfigError } from '../config.ts';
import { countOpenDomainKeys } from '../domains/domains.ts';
import { now } from '../platform/clock.ts';
import type { Connection } from '../platform/postgres/database.ts';
import { type RunningChore, startChore } from '../platform/queue/chore.ts';
import {
  newDataKeyBytes,
  type OpenedKeys,
  openSealedKeys,
  readSealedKeys,
  type SealedKeys,
  takeUpSecret,
} from '../platform/secret-keys.ts';
import {
  createKeyRing,
  createSecrets,
  type DataKey,
  deriveDataKey,
  type KeyRing,
  secretLengthMin,
  type Secrets,
} from '../platform/secrets.ts';
import { wordFor } from '../platform/wording.ts';
import type { Foundation } from './foundation.ts';
import { makeSecretFile, readSecretFile, secretFileOf } from './secret-file.ts';
import { programName } from '../platform/program-name.ts';

/**
 * Finds out whether the secret at hand is that of the database, before anything is done with it. Under another secret
 * no suppressed address would be recognised, so that people who opted out would be written to: an installation whose
 * secret does not fit does not start.
 */

export type SecretCondition =
  | { kind: 'fits'; opened: OpenedKeys; sealed: SealedKeys[] }
  /** Nothing was ever sealed or hashed here: the first start takes up a secret. */
  | { kind: 'unused' }
  /** In use since before keys were kept in the database. `problem` is why the secret is not taken up by itself. */
  | { kind: 'not_taken_up'; secret: string; stored: StoredUnderSecrets; problem: string | null }
  | { kind: 'lost' | 'wrong'; problem: string };

/**
 * Looks, and changes nothing. The schema may be missing, or be that of an older release. `tryOn` is how a secret that is
 * not taken up yet is compared with what is stored.
 */
export async function examineSecret(
  foundation: Foundation,
  tryOn: (connection: Connection, secrets: Secrets) => Promise<StoredUnderSecrets>,
): Promise<SecretCondition> {
  const { config } = foundation;
  const { sealed, secrets, opened } = await openStoredKeys(foundation);
  const [secret] = secrets;
  if (opened !== null) return { kind: 'fits', opened, sealed };
  if (secret === undefined && sealed.length > 0) return { kind: 'lost', problem: lostSecret(config) };
  if (sealed.length > 0) return { kind: 'wrong', problem: wrongSecret(config) };
  if (!(await isInUse(foundation))) return { kind: 'unused' };
  if (secret === undefined) return { kind: 'lost', problem: lostSecret(config) };
  const stored = await tryOn(foundation.database, createSecrets(secret));
  return { kind: 'not_taken_up', secret, stored, problem: findObstacle(config, stored) };
}

/**
 * The keys of the installation; at the first start its secret is taken up, and made where the data directory is to
 * keep it. Throws a ConfigError, a sentence on what to do, if the secret is not that of the database or is lost, or if
 * taking it up would lose something and the operator has not accepted that.
 */
export async function openSecrets(
  foundation: Foundation,
  options: { acceptsLosses: boolean } = { acceptsLosses: false },
): Promise<KeyRing> {
  const { clock, log } = foundation;
  // All of it: what a sample missed would be hashed under no secret that anybody has, and people who opted out written to.
  const condition = await examineSecret(foundation, tryOnWhatIsStored);
  switch (condition.kind) {
    case 'fits':
      return createKeyRing(condition.opened.keys, clock.nowMs, () => readKeys(foundation));
    case 'lost':
    case 'wrong':
      throw new ConfigError(condition.problem);
    case 'not_taken_up': {
      const { secret, stored, problem } = condition;
      if (problem !== null && !options.acceptsLosses) throw new ConfigError(problem);
      const { misfits } = stored.suppressions;
      if (misfits > 0)
        log.warn({ misfits }, 'suppressions that were hashed under another secret are hashed again');
      return takeUp(foundation, secret, deriveDataKey(secret), misfits > 0);
    }
    case 'unused': {
      const [secret = await makeSecretFile(secretFileOf(foundation.config.dataDirectory))] =
        await secretsAtHand(foundation.config);
      return takeUp(foundation, secret, newDataKeyBytes(), false);
    }
  }
}

async function takeUp(
  foundation: Foundation,
  secret: string,
  bytes: Buffer,
  hasMisfits: boolean,
): Promise<KeyRing> {
  const { config, clock, database } = foundation;
  const sealed = await database.transaction((transaction) =>
    takeUpSecret(transaction, { secret, bytes, at: now(clock) }, async () => {
      if (hasMisfits) await rehashSuppressions(transaction, createSecrets(secret));
    }),
  );
  // Another process may have been first, with another secret.
  const opened = openSealedKeys(sealed, [secret]);
  if (opened === null) throw new ConfigError(wrongSecret(config));
  return createKeyRing(opened.keys, clock.nowMs, () => readKeys(foundation));
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
async function isInUse({ database }: Foundation): Promise<boolean> {
  const [table] = await database.rows<{ exists: boolean }>({
    text: "select to_regclass('organizations') is not null as exists",
  });
  return table?.exists === true && (await hasOrganizations(database));
}

export type StoredUnderSecrets = {
  /** False where only a part was tried. */
  isWhole: boolean;
  suppressions: { recognised: number; misfits: number; erased: number };
  domainKeys: { recognised: number; misfits: number };
};

/** Of all that is stored under a secret, how much belongs to this one. Read in batches: half a minute a million. */
export async function tryOnWhatIsStored(
  connection: Connection,
  secrets: Secrets,
): Promise<StoredUnderSecrets> {
  return {
    isWhole: true,
    suppressions: await countRecognisedSuppressions(connection, secrets),
    domainKeys: await countOpenDomainKeys(connection, secrets),
  };
}

/** DKIM keys of a sample, by five hundred. */
const sampledKeyBatchesMax = 10;

/** The same of a part, which takes seconds at most. */
export async function tryOnSample(connection: Connection, secrets: Secrets): Promise<StoredUnderSecrets> {
  const suppressions = await sampleSuppressions(connection, secrets);
  const domainKeys = await countOpenDomainKeys(connection, secrets, sampledKeyBatchesMax);
  return { isWhole: suppressions.isWhole && domainKeys.isWhole, suppressions, domainKeys };
}

/** Why a secret is not taken up by itself; null if nothing is lost by it. */
function findObstacle(config: Config, { suppressions, domainKeys }: StoredUnderSecrets): string | null {
  const recognised = suppressions.recognised + domainKeys.recognised;
  const { misfits, erased } = suppressions;
  if (recognised === 0 && misfits + domainKeys.misfits > 0) return wrongSecret(config);
  const goOn = `To go on without what does not fit, run "${programName()} secret adopt --accept-losses".`;
  if (recognised === 0 && erased > 0)
    return `Nothing stored can tell whether the secret is that of this database: it has ${erased} ${wordFor(erased, 'suppression, of an erased address', 'suppressions, all of erased addresses')}, which would not be recognised under another one. If it is the right one, run "${programName()} secret adopt --accept-losses".`;
  // Of several secrets, nothing tells under which one an erased address was hashed.
  if (domainKeys.misfits === 0 && (misfits === 0 || erased === 0)) return null;
  return `Part of what is stored belongs to another secret: ${misfits} ${wordFor(misfits, 'suppression')} whose address is known, which can be hashed again, ${domainKeys.misfits} DKIM ${wordFor(domainKeys.misfits, 'key')}, which cannot be opened, and perhaps some of ${erased} ${wordFor(erased, 'suppression')} of erased addresses. If the other secret still exists, find out which of the two is the right one. ${goOn}`;
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
