import { createWriteStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import type { Command } from 'commander';
import { type Config, readConfig, readEnvironment, readVersion } from '../config.ts';
import {
  asDatabaseProblem,
  describeFailure,
  findPostgres,
  hasInstallation,
  openFoundation,
  readSecretFile,
  secretFileOf,
} from '../installation/installation.ts';
import { now, systemClock } from '../platform/clock.ts';
import { startBaseBackup } from '../platform/postgres/base-backup.ts';
import { readServerVersion } from '../platform/postgres/condition.ts';
import type { Database, DatabaseAddress } from '../platform/postgres/database.ts';
import { type DumpProgram, findDumpProgram, runDumpProgram } from '../platform/postgres/dump-programs.ts';
import { pendingMigrations } from '../platform/postgres/migrate.ts';
import { writeCluster } from './backup-archive.ts';
import { encrypt, readPassphrase } from './backup-encryption.ts';
import { type CommandOutcome, done, refuse, runCommand } from './command.ts';
import { type NewFile, openNewFile } from './files.ts';
import { interruptedExitCode, listenForInterruption } from './progress.ts';

export type BackupOptions = { programs?: string; withoutSecret?: boolean; passphraseFile?: string };

/**
 * `backup`. The file appears under its name only when it is whole, and replaces none. It holds one state of the database,
 * while servers go on: all that was accepted before the command began, and some of what was accepted meanwhile.
 */
export async function runBackup(file: string, options: BackupOptions, command: Command): Promise<void> {
  await runCommand(command, { isLong: true }, async (log) => {
    const config = readConfig(readEnvironment(process.env));
    if (!hasInstallation(config)) return refuse(`There is no installation in ${config.dataDirectory} yet.`);
    const given = await takePassphrase(options.passphraseFile);
    if (given.kind === 'refused') return refuse(given.problem);
    const { address, stop } = await findPostgres(config, log);
    try {
      const foundation = await openFoundation(config, log, { migrate: false, address });
      try {
        return await backUp({ config, database: foundation.database, address }, file, {
          ...options,
          passphrase: given.passphrase,
        });
      } finally {
        await foundation.close();
      }
    } catch (cause) {
      throw config.databaseUrl === null ? cause : await asDatabaseProblem(cause, config.databaseUrl);
    } finally {
      await stop();
    }
  });
}

/** Null where no file is named. */
export async function takePassphrase(
  file: string | undefined,
): Promise<{ kind: 'read'; passphrase: string | null } | { kind: 'refused'; problem: string }> {
  return file === undefined ? { kind: 'read', passphrase: null } : readPassphrase(file);
}

type Source = { config: Config; database: Database; address: DatabaseAddress };

/** How a backup ended; anything but `whole` leaves no file. */
type Ending = { kind: 'whole' } | { kind: 'failed'; problem: string } | { kind: 'interrupted' };

async function backUp(
  source: Source,
  file: string,
  { passphrase, ...options }: BackupOptions & { passphrase: string | null },
): Promise<CommandOutcome> {
  const { config, database, address } = source;
  const pending = await pendingMigrations(database);
  if (pending.some(({ version }) => version === 1))
    return refuse('The database is empty: there is nothing to back up.');
  const { major } = await readServerVersion(database);
  // Both of them before there is a file.
  const program = 'url' in address ? await chooseProgram('pg_dump', major, options.programs) : null;
  if (typeof program === 'string') return refuse(program);
  const interruption = listenForInterruption();
  const target = await openNewFile(file);
  if (typeof target === 'string') {
    interruption.ignore();
    return refuse(target);
  }
  try {
    const secret =
      program === null && options.withoutSecret !== true
        ? await readSecretFile(secretFileOf(config.dataDirectory))
        : null;
    const ending =
      program === null
        ? await copyCluster(source, { target, secret, passphrase, major, signal: interruption.signal })
        : await dump(program, sessionAddressOf(config, address), { target, passphrase }, interruption.signal);
    if (ending.kind === 'interrupted' || interruption.signal.aborted) {
      process.exitCode = interruptedExitCode;
      return refuse('The backup was interrupted, and no file was made.');
    }
    if (ending.kind === 'failed') return refuse(`The backup failed, and no file was made. ${ending.problem}`);
    await target.commit();
    return await describe(source, file, { hasSecret: secret !== null, isEncrypted: passphrase !== null });
  } finally {
    await target.discard();
    interruption.ignore();
  }
}

/** `pg_dump` and `pg_restore` rely on their session, which a pooler may not keep. */
export function sessionAddressOf({ sessionDatabaseUrl }: Config, address: DatabaseAddress): DatabaseAddress {
  return sessionDatabaseUrl === null ? address : { url: sessionDatabaseUrl };
}

async function describe(
  { config }: Source,
  file: string,
  { hasSecret, isEncrypted }: { hasSecret: boolean; isEncrypted: boolean },
): Promise<CommandOutcome> {
  const { size } = await stat(file);
  const kept =
    config.databaseUrl !== null || config.secret !== null
      ? 'POSTILLION_SECRET is not in it, and nothing can be restored without it: keep it in another place.'
      : `The secret (${secretFileOf(config.dataDirectory).path}) is not in it, and nothing can be restored without it: keep it in another place.`;
  const isDump = config.databaseUrl !== null;
  const isPlainDump = isDump && !isEncrypted;
  const warning = hasSecret
    ? isEncrypted
      ? 'The secret is in it, under the passphrase.'
      : 'The secret is in it: keep it like a password, or encrypt it with --passphrase-file.'
    : kept;
  return done(
    {
      file,
      bytes: size,
      kind: isDump ? 'dump' : 'cluster',
      has_secret: hasSecret,
      is_encrypted: isEncrypted,
    },
    [
      `${file} has all of the database (${size.toLocaleString('en-US')} bytes${isPlainDump ? ', as pg_dump -Fc writes them' : ''}).`,
      warning,
      ...(isEncrypted ? ['It is encrypted: without the passphrase nothing of it can be restored.'] : []),
    ].join('\n'),
  );
}

/** Without `--no-unlogged-table-data` the counts of the present minute would be there as well. */
const dumpArguments = [
  '--format=custom',
  '--no-owner',
  '--no-privileges',
  '--no-unlogged-table-data',
  '--no-password',
];

async function dump(
  program: DumpProgram,
  address: DatabaseAddress,
  { target: { part }, passphrase }: { target: NewFile; passphrase: string | null },
  signal: AbortSignal,
): Promise<Ending> {
  const outcome =
    passphrase === null
      ? await runDumpProgram(program, [...dumpArguments, `--file=${part}`], address, signal)
      : await runDumpProgram(program, dumpArguments, address, signal, {
          keep: (output) =>
            pipeline(
              output,
              (dumped: AsyncIterable<Buffer>) => encrypt(dumped, passphrase),
              createWriteStream(part, { flags: 'r+' }),
            ),
        });
  if (outcome.kind === 'failed') return { kind: 'failed', problem: outcome.said };
  return outcome.kind === 'done' ? { kind: 'whole' } : outcome;
}

/** Higher takes several times as long, and saves a tenth. */
const compressionLevel = 1;

async function copyCluster(
  { config, address }: Source,
  {
    target,
    secret,
    passphrase,
    major,
    signal,
  }: {
    target: NewFile;
    secret: string | null;
    passphrase: string | null;
    major: number;
    signal: AbortSignal;
  },
): Promise<Ending> {
  if ('url' in address) throw new Error('the files of a PostgreSQL of one’s own are not copied');
  const origin = { release: readVersion(), postgres: major, at: now(systemClock) };
  try {
    const files = await startBaseBackup(address);
    await pipeline(
      writeCluster(origin, secret, files),
      createGzip({ level: compressionLevel }),
      (compressed: AsyncIterable<Buffer>) =>
        passphrase === null ? compressed : encrypt(compressed, passphrase),
      createWriteStream(target.part, { flags: 'r+' }),
      { signal },
    );
  } catch (cause) {
    return signal.aborted
      ? { kind: 'interrupted' }
      : { kind: 'failed', problem: `${describeFailure(cause)}.` };
  }
  // What is sealed under a secret that came meanwhile does not open with the one before.
  if (secret !== null && secret !== (await readSecretFile(secretFileOf(config.dataDirectory))))
    return { kind: 'failed', problem: 'The secret was replaced meanwhile. Begin again.' };
  return { kind: 'whole' };
}

/** Where PostgreSQL's packages put the programs of each version, besides those on the PATH. */
const versionFolder = (major: number) => [`/usr/lib/postgresql/${major}/bin`, `/usr/pgsql-${major}/bin`];

/**
 * The program of that name that fits the server, or a sentence on why there is none: of the folder that is named, else of
 * the server's own version, else the first on the PATH.
 */
export async function chooseProgram(
  name: DumpProgram['name'],
  serverMajor: number,
  folder: string | undefined,
): Promise<DumpProgram | string> {
  const searched =
    folder === undefined
      ? [...versionFolder(serverMajor), ...(process.env.PATH ?? '').split(path.delimiter)]
      : [path.resolve(folder)];
  const program = await findDumpProgram(name, searched);
  const needed = `Install the client programs of PostgreSQL ${serverMajor} or newer, or name their folder with --programs.`;
  if (program === null)
    return `There is no ${name} ${folder === undefined ? 'on the PATH' : `in ${folder}`}. ${needed}`;
  if (program.majorVersion < serverMajor)
    return `${program.file} is of version ${program.majorVersion}, and the server of version ${serverMajor}, which it cannot ${name === 'pg_dump' ? 'dump' : 'restore'}. ${needed}`;
  return program;
}
