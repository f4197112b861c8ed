import type { Command } from 'commander';
import { InvalidArgumentError } from 'commander';
import {
  type Foundation,
  generateSecret,
  type Installation,
  replaceSecretFile,
  secretFileOf,
  secretsAtHand,
} from '../installation/installation.ts';
import { now } from '../platform/clock.ts';
import { tryLockNameAlone } from '../platform/postgres/name-locks.ts';
import {
  openSealedKeys,
  readSealedKeys,
  retireSecret,
  type RotationOutcome,
  rotateSecret,
} from '../platform/secret-keys.ts';
import { addCommand, type CommandOutcome, formatTable, onFoundation, onInstallation } from './command.ts';
import { programName } from '../platform/program-name.ts';

/** Adds the commands that show and replace the secret of the installation. */
export function addSecretCommands(group: Command): void {
  addCommand(group, 'list', 'List the numbers of the secrets that are valid for the database.').action(
    onFoundation(runSecretList, { schema: 'any', isLong: false }),
  );
  addCommand(
    group,
    'rotate',
    'Replace the secret by POSTILLION_NEXT_SECRET, or by a generated one. The old one stays valid until it is retired.',
  ).action(onInstallation(runSecretRotate));
  addCommand(group, 'retire', 'End the validity of a secret, once every process has the other one.')
    .argument('<number>', `as "${programName()} secret list" shows it`, parseSecretId)
    .action(onInstallation(runSecretRetire));
}

function parseSecretId(text: string): number {
  if (!/^[1-9]\d{0,8}$/.test(text))
    throw new InvalidArgumentError(`It must be a number as "${programName()} secret list" shows it.`);
  return Number(text);
}

async function runSecretList({ config, database }: Foundation): Promise<CommandOutcome> {
  const sealed = await readSealedKeys(database);
  const given = openSealedKeys(sealed, await secretsAtHand(config))?.secretId ?? null;
  const table = formatTable(
    ['SECRET', 'SINCE', 'KEYS', 'THIS ONE'],
    sealed.map(({ secretId, createdAt, keys }) => [
      `${secretId}`,
      createdAt.toISOString(),
      keys.map(({ id }) => `${id}`).join(','),
      secretId === given ? 'yes' : 'no',
    ]),
  );
  return {
    kind: 'done',
    json: {
      data: sealed.map(({ secretId, createdAt, keys }) => ({
        id: secretId,
        created_at: createdAt,
        keys: keys.map(({ id, usableFrom }) => ({ id, used_from: usableFrom })),
        is_given: secretId === given,
      })),
    },
    text: table,
  };
}

async function runSecretRotate(installation: Installation): Promise<CommandOutcome> {
  return installation.config.secret === null ? rotateFile(installation) : rotateGiven(installation);
}

/** The operator carries the new secret to every process, and then retires the old one. */
async function rotateGiven({ config, database, clock }: Installation): Promise<CommandOutcome> {
  const next = config.nextSecret ?? generateSecret();
  const secrets = await secretsAtHand(config);
  const outcome = await database.transaction((transaction) =>
    rotateSecret(transaction, { secrets, next, at: now(clock) }),
  );
  if (outcome.kind !== 'rotated') return refuse(describeRefusal(outcome));
  const { secretId, retiringId } = outcome;
  return {
    kind: 'done',
    json: { id: secretId, retiring: retiringId, ...(config.nextSecret === null && { secret: next }) },
    text: [
      config.nextSecret === null
        ? `Secret ${secretId}: ${next}\nIt is not shown again.`
        : `POSTILLION_NEXT_SECRET is secret ${secretId} now.`,
      `It and secret ${retiringId} are both valid. Set POSTILLION_SECRET to the new one on every node, restart each of them, and then run with the new one: "${programName()} secret retire ${retiringId}".`,
    ].join('\n'),
  };
}

/**
 * The data directory has the only copy, so no one needs to be told: the new secret is on the disk before the database
 * knows it, and replaces the old one before that is retired. Wherever this is interrupted, the file is valid.
 */
async function rotateFile(installation: Installation): Promise<CommandOutcome> {
  const { config, database, clock } = installation;
  const file = secretFileOf(config.dataDirectory);
  const alone = await database.connectAlone('postillion-secret-rotate');
  try {
    const isLocked = await tryLockNameAlone(database, alone, 'postillion secret file');
    if (!isLocked) return refuse('Another "secret rotate" is running.');
    const secrets = await secretsAtHand(config);
    await retireOthers(installation, secrets);
    const next = generateSecret();
    const outcome = await replaceSecretFile(file, next, async () => {
      const result = await database.transaction((transaction) =>
        rotateSecret(transaction, { secrets, next, at: now(clock) }),
      );
      return { replace: result.kind === 'rotated', result };
    });
    if (outcome.kind !== 'rotated') return refuse(describeRefusal(outcome));
    await retireOthers(installation, [next]);
    const { secretId } = outcome;
    return {
      kind: 'done',
      json: { id: secretId, file: file.path },
      text: `${file.path} holds secret ${secretId} now. Running processes know it. Older backups need the file that they contain.`,
    };
  } finally {
    await alone.end();
  }
}

/** What the file does not open was left over by a rotation that was cut off. */
async function retireOthers({ database }: Installation, secrets: readonly string[]): Promise<void> {
  const sealed = await readSealedKeys(database);
  const kept = openSealedKeys(sealed, secrets)?.secretId;
  for (const { secretId } of sealed) {
    if (secretId === kept) continue;
    await database.transaction((transaction) => retireSecret(transaction, { secretId, secrets }));
  }
}

async function runSecretRetire(
  { config, database }: Installation,
  secretId: number,
): Promise<CommandOutcome> {
  const secrets = await secretsAtHand(config);
  const outcome = await database.transaction((transaction) =>
    retireSecret(transaction, { secretId, secrets }),
  );
  switch (outcome.kind) {
    case 'retired':
      return {
        kind: 'done',
        json: { id: secretId, retired: true },
        text: `Secret ${secretId} is no longer valid. Keep it with the backups from its time, which need it.`,
      };
    case 'not_found':
      return refuse(`There is no secret ${secretId}. Valid are ${outcome.secretIds.join(' and ')}.`);
    case 'last':
      return refuse(
        `Secret ${secretId} is the one that was given to this command. Run it with the other one, which then stays.`,
      );
  }
}

function describeRefusal(outcome: Exclude<RotationOutcome, { kind: 'rotated' }>): string {
  switch (outcome.kind) {
    case 'under_way':
      return `A rotation is under way: secrets ${outcome.secretIds.join(' and ')} are both valid. Retire one of them first, with "${programName()} secret retire".`;
    case 'wrong_secret':
      return 'Another command has just replaced the secret.';
    case 'same_secret':
      return 'POSTILLION_NEXT_SECRET is the secret already.';
    case 'no_more_keys':
      return 'The secret was replaced 254 times, and there is no number left for another key.';
  }
}

function refuse(problem: string): CommandOutcome {
  return { kind: 'refused', problem };
}
