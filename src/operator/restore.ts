import { existsSync } from 'node:fs';
import path from 'node:path';
import type { Command } from 'commander';
import { type Config, readConfig, readEnvironment } from '../config.ts';
import {
  asDatabaseProblem,
  describeFailure,
  examineSecret,
  type Foundation,
  makeSecretFile,
  openFoundation,
  readSecretFile,
  secretFileOf,
  whileRestarting,
} from '../installation/installation.ts';
import { countQueued } from '../messages/messages.ts';
import { now } from '../platform/clock.ts';
import type { Log } from '../platform/log.ts';
import { readServerVersion } from '../platform/postgres/condition.ts';
import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import { runDumpProgram } from '../platform/postgres/dump-programs.ts';
import { restoreCluster } from '../platform/postgres/embedded-restore.ts';
import { migrate } from '../platform/postgres/migrate.ts';
import { makeServingRoles } from '../platform/postgres/tenant-wall.ts';
import { createPartitions } from '../platform/postgres/partitions.ts';
import { wordFor } from '../platform/wording.ts';
import { chooseProgram, sessionAddressOf, takePassphrase } from './backup.ts';
import {
  type BackupFile,
  type BackupKind,
  type ClusterBackup,
  clusterFilesOf,
  examineCluster,
  findBackupKind,
  openBackup,
} from './backup-archive.ts';
import { type CommandOutcome, done, refuse, runCommand } from './command.ts';
import { interruptedExitCode, listenForInterruption } from './progress.ts';
import { programName } from '../platform/program-name.ts';

export type RestoreOptions = { programs?: string; passphraseFile?: string };

/**
 * `restore`, into an empty database, or a data directory without one: what is there is never replaced, since it is the
 * only way back from a backup that turns out to be the wrong one. All of the file is restored, or nothing. Then the schema
 * is brought up to date, and with it the role that a dump does not have.
 */
export async function runRestore(file: string, options: RestoreOptions, command: Command): Promise<void> {
  await runCommand(command, { isLong: true }, async (log) => {
    const config = readConfig(readEnvironment(process.env));
    const given = await takePassphrase(options.passphraseFile);
    if (given.kind === 'refused') return refuse(given.problem);
    const opened = await openFile(file, given.passphrase);
    if (opened.kind === 'refused') return refuse(opened.problem);
    const work = { config, log, file, read: opened.read };
    return opened.holds === 'dump' ? restoreDump({ ...work, options }) : restoreFiles(work);
  });
}

type OpenedFile =
  { kind: 'opened'; holds: BackupKind; read: BackupFile } | { kind: 'refused'; problem: string };

async function openFile(file: string, passphrase: string | null): Promise<OpenedFile> {
  const problems = {
    needs_passphrase: `${file} is encrypted: name the file with its passphrase in --passphrase-file.`,
    needs_none: `${file} is not encrypted: leave --passphrase-file out.`,
    wrong_passphrase: `${file} cannot be opened: its passphrase is another one, or the file is damaged.`,
  };
  try {
    const read = await openBackup(file, passphrase);
    if (typeof read === 'string') return { kind: 'refused', problem: problems[read] };
    const holds = await findBackupKind(read);
    return holds === null
      ? {
          kind: 'refused',
          problem: `${file} is no backup: neither of "${programName()} backup" nor of pg_dump -Fc.`,
        }
      : { kind: 'opened', holds, read };
  } catch (cause) {
    return { kind: 'refused', problem: `${file} cannot be read: ${describeFailure(cause)}.` };
  }
}

type Work = { config: Config; log: Log; file: string; read: BackupFile };

async function restoreDump({
  config,
  log,
  file,
  read,
  options,
}: Work & { options: RestoreOptions }): Promise<CommandOutcome> {
  const { databaseUrl } = config;
  if (databaseUrl === null)
    return refuse(
      `${file} is a dump of a database: name an empty one in DATABASE_URL, which it is restored into.`,
    );
  return onFoundation(config, log, async (foundation) => {
    const { database } = foundation;
    if (await hasTables(database))
      return refuse(
        'The database that DATABASE_URL names is not empty, and nothing in it is replaced. Make an empty one and name that.',
      );
    const { major } = await readServerVersion(database);
    const program = await chooseProgram('pg_restore', major, options.programs);
    if (typeof program === 'string') return refuse(program);
    // Policies in the file are for roles, which no dump has in it.
    if (!(await makeServingRoles(database)))
      return refuse(
        'There are no roles postillion_request and postillion_serving, and the user of DATABASE_URL may make none. Let an administrator make them: see "Your own PostgreSQL" in docs/operating.md.',
      );
    const interruption = listenForInterruption();
    try {
      const outcome = await runDumpProgram(
        program,
        // One transaction: what fails leaves nothing behind.
        ['--no-owner', '--no-privileges', '--no-password', '--single-transaction', '--dbname='],
        sessionAddressOf(config, { url: databaseUrl }),
        interruption.signal,
        { input: await read() },
      );
      if (outcome.kind === 'interrupted') {
        process.exitCode = interruptedExitCode;
        return refuse('The restore was interrupted, and the database is as empty as before.');
      }
      if (outcome.kind === 'failed')
        return refuse(`${file} cannot be restored, and the database is as empty as before. ${outcome.said}`);
    } finally {
      interruption.ignore();
    }
    return finish(foundation, file);
  });
}

async function restoreFiles({ config, log, file, read }: Work): Promise<CommandOutcome> {
  const { dataDirectory, databaseUrl } = config;
  if (databaseUrl !== null)
    return refuse(
      `${file} has the files of an embedded PostgreSQL, which cannot be put into the one that DATABASE_URL names. Unset it to restore them into the data directory.`,
    );
  if (existsSync(path.join(dataDirectory, 'postgres', 'cluster')))
    return refuse(
      `There is a database in ${dataDirectory} already, and nothing in it is replaced. Move it away, or name another folder in POSTILLION_DATA_DIR.`,
    );
  let backup: ClusterBackup;
  try {
    backup = await examineCluster(read);
  } catch (cause) {
    return refuse(`${file} cannot be restored, and nothing was changed: ${describeFailure(cause)}.`);
  }
  const secretFile = secretFileOf(dataDirectory);
  const present = await readSecretFile(secretFile);
  if (backup.secret !== null && present !== null && present !== backup.secret)
    return refuse(
      `${secretFile.path} is another secret than the one in ${file}. Move it away: the one of the backup takes its place.`,
    );
  try {
    await restoreCluster({
      dataDirectory,
      entries: clusterFilesOf(read),
      beforePlaced: async () => {
        if (backup.secret !== null) await makeSecretFile(secretFile, backup.secret);
      },
    });
  } catch (cause) {
    return refuse(`${file} cannot be restored: ${describeFailure(cause)}.`);
  }
  return onFoundation(config, log, (foundation) => finish(foundation, file));
}

async function onFoundation(
  config: Config,
  log: Log,
  work: (foundation: Foundation) => Promise<CommandOutcome>,
): Promise<CommandOutcome> {
  const foundation = await openFoundation(config, log, { migrate: false });
  try {
    return await work(foundation);
  } catch (cause) {
    throw config.databaseUrl === null ? cause : await asDatabaseProblem(cause, config.databaseUrl);
  } finally {
    await foundation.close();
  }
}

/** More are told as so many: beyond it they are not counted. */
const queuedMax = 10_000;

async function finish(foundation: Foundation, file: string): Promise<CommandOutcome> {
  const { config, database, clock } = foundation;
  const applied = await whileRestarting(config, () => migrate(database));
  await createPartitions(database, now(clock), config.partitionSize);
  const secret = await examineSecret(foundation);
  const isOpened = secret.kind === 'fits';
  const queued = await countQueued(database, queuedMax);
  const lines = [
    `${file} is restored${applied.length === 0 ? '' : `, and the schema brought up to date (${applied.length} ${wordFor(applied.length, 'migration')})`}.`,
    queued === 0
      ? 'Nothing waits to be sent.'
      : `${queued === queuedMax ? 'At least ' : ''}${queued} ${wordFor(queued, 'recipient or slice of a campaign waits', 'recipients or slices of campaigns wait')} to be sent, and may have been sent since the backup. Start "serve --role api" alone until you have decided about them; see "After a restore" in docs/operating.md.`,
    ...('problem' in secret ? [secret.problem] : []),
    `Run "${programName()} doctor".`,
  ];
  const json = { file, applied: applied.map(({ name }) => name), queued, secret_fits: isOpened };
  return isOpened ? done(json, lines.join('\n')) : { kind: 'failed', json, text: lines.join('\n') };
}

/** Anything that a user has made; extensions, which a managed PostgreSQL may bring, have tables of their own. */
async function hasTables(connection: Connection): Promise<boolean> {
  const [row] = await connection.rows(
    unpreparedStatement<{ has_tables: boolean }>(
      `select exists (
         select
         from pg_class c
         join pg_namespace n on n.oid = c.relnamespace
         where n.nspname <> 'information_schema' and n.nspname not like 'pg\\_%'
           and not exists (
             select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e'
           )
       ) as has_tables`,
    ),
  );
  return row?.has_tables === true;
}
