/** One PostgreSQL process on one directory: made, started, found again, spoken to, stopped. Supervises nothing. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { constants, watch } from 'node:fs';
import {
  copyFile,
  type FileHandle,
  lstat,
  open,
  readdir,
  readFile,
  readlink,
  rename,
  rm,
  stat,
  truncate,
} from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import type { Binaries } from './embedded-binaries.ts';
import { errorCode } from './embedded-lock.ts';
import { type EmbeddedPlace, giveTree, makeDirectory, socketPort, unless } from './embedded-place.ts';

/** The name of the superuser, and of the database. */
export const databaseName = 'postillion';

/** By this name the supervisors of one server recognise each other. */
export const supervisorName = 'postillion-supervisor';

const run = promisify(execFile);

/** initdb takes 0.6 s on a small machine; a slow disk that syncs 40 MB may take a minute. */
const initdbTimeoutMs = 180_000;

/** A server that accepts the connection and then says nothing for this long counts as busy. */
const connectTimeoutMs = 2_000;

/** Larger: more to read after an accident. Two files of this size are kept. */
const logBytesMax = 8_000_000;

/** Enough for a startup failure with its hints; the rest is in the file. */
const logTailBytes = 2_000;

/** For a server on a small machine that it shares with the service. */
const serverSettings: Readonly<Record<string, string>> = {
  // The bundled OpenSSL is past its end of life, and all clients connect through the socket.
  listen_addresses: '',
  ssl: 'off',
  port: String(socketPort),
  // The directory is private too; root passes both.
  unix_socket_permissions: '0700',
  // An accepted message is a committed row: none of the three may be traded for speed.
  fsync: 'on',
  full_page_writes: 'on',
  synchronous_commit: 'on',
  // Some pools of 4 to 8, supervisors, operator commands. Each connection in use costs some MB.
  max_connections: '100',
  // These binaries know only pglz, which takes more time from commits than the disk saves.
  wal_compression: 'off',
  // What was written since the last checkpoint is redone after a crash, before anything can be served: on two cores
  // of which others took most, with rows that go into three indexes in no order, 20 s for 361 MB, 24 s for 468 MB and
  // 128 s for 1.9 GB, and a quarter of that on an idle machine. Checkpoints have whole pages written into the log
  // anew: with so many of them, 6 % fewer of these rows were written a second than with 2 GB.
  max_wal_size: '384MB',
  checkpoint_timeout: '15min',
  // These binaries have none; those of others spend more on compiling than our statements take.
  jit: 'off',
  timezone: 'UTC',
  log_timezone: 'UTC',
  // Our own reading of the log, and of errors, relies on English.
  lc_messages: 'C',
  // Failed statements are reported to their sender, whose log is ours. Here they would fill the disk, and show
  // addresses ("Key (email)=(…) already exists"). What concerns the server as a whole is still written.
  log_min_messages: 'log',
  log_min_error_statement: 'panic',
  log_checkpoints: 'off',
  log_line_prefix: '%m [%p] ',
  // One file, bounded by `boundLog`: the collector bounds the size of each file, but never their number.
  logging_collector: 'off',
  log_destination: 'stderr',
  cluster_name: databaseName,
};

const sharedBuffersMbMin = 128;
const sharedBuffersMbMax = 2_048;

/**
 * An eighth of the memory; the rest serves the system's cache, the service, and its neighbours. Rows of contacts are
 * put into half a dozen indexes each, in no order: where these do not fit, most of the work is to read pages and to
 * write them back. Memory that PostgreSQL has not needed yet is not taken.
 */
export function chooseSharedBuffersMb(memoryBytes: number): number {
  const eighthMb = Math.floor(memoryBytes / 8 / 1_048_576);
  return Math.min(Math.max(eighthMb, sharedBuffersMbMin), sharedBuffersMbMax);
}

/** What the machine has, or the container that this runs in may have. */
function memoryBytes(): number {
  const allowedBytes = process.constrainedMemory();
  return allowedBytes > 0 ? Math.min(allowedBytes, os.totalmem()) : os.totalmem();
}

/**
 * Makes the cluster unless it is there. The caller holds the lock. It is made beside its place and renamed when
 * it is complete and on the disk, so that a kill leaves nothing half-made, only a directory for the next caller
 * to remove.
 */
export async function createClusterIfMissing(
  binaries: Binaries,
  place: EmbeddedPlace,
  settings: Readonly<Record<string, string>>,
): Promise<void> {
  await removeDrafts(place.home);
  const existing = await stat(place.cluster).catch(unless('ENOENT'));
  if (existing !== undefined) {
    if (place.serverUser !== null && existing.uid === 0) await giveTree(place.cluster, place.serverUser);
    return;
  }

  const draft = path.join(place.home, `cluster-new-${randomBytes(4).toString('hex')}`);
  await makeDirectory(draft, 0o700, place.serverUser);
  const runHere = (program: string, given: readonly string[]) =>
    run(program, given, {
      env: binaries.environment,
      cwd: draft,
      timeout: initdbTimeoutMs,
      killSignal: 'SIGKILL',
      ...place.serverUser,
    });
  try {
    await runHere(binaries.initdb, ['-D', draft, ...initdbArguments(binaries.majorVersion)]);
    await createDatabase(binaries, place, draft);
    // Durability is given up here only where it is given up for the running server as well.
    if (settings.fsync !== 'off') await runHere(binaries.initdb, ['--sync-only', '-D', draft]);
  } catch (cause) {
    const said = cause instanceof Error && 'stderr' in cause ? String(cause.stderr).trim() : '';
    await rm(draft, { recursive: true, force: true });
    throw new Error(`PostgreSQL could not make its files in ${place.home}: ${said.slice(-logTailBytes)}`, {
      cause,
    });
  }
  await rename(draft, place.cluster);
  await syncDirectory(place.home);
}

function initdbArguments(majorVersion: number): string[] {
  // The builtin provider sorts by code point on every system, for ever: no index breaks with a new C library.
  const locale =
    majorVersion >= 17
      ? ['--locale=C', '--locale-provider=builtin', '--builtin-locale=C.UTF-8']
      : ['--locale=C.UTF-8', '--lc-messages=C'];
  return [
    `--username=${databaseName}`,
    '--encoding=UTF8',
    ...locale,
    // Only the server's own user and root can reach the socket. Asking who they are (`peer`) would let in no fewer,
    // and keep out the service that runs as root beside a server that does not.
    '--auth-local=trust',
    '--auth-host=reject',
    '--no-sync',
  ];
}

/** The server reads one statement from its standard input, without ever being open to connections. */
async function createDatabase(binaries: Binaries, place: EmbeddedPlace, draft: string): Promise<void> {
  const child = execFile(binaries.postgres, ['--single', '-F', '-D', draft, 'postgres'], {
    env: binaries.environment,
    cwd: draft,
    timeout: initdbTimeoutMs,
    killSignal: 'SIGKILL',
    ...place.serverUser,
  });
  let said = '';
  child.stderr?.on('data', (chunk) => {
    said = (said + String(chunk)).slice(-logTailBytes);
  });
  // It may have ended before it reads; its exit code says so.
  child.stdin?.on('error', () => undefined);
  child.stdin?.end(`create database ${databaseName}\n`);
  const [code] = (await once(child, 'close')) as [number | null];
  // A failed statement ends this mode with 0 all the same.
  if (code !== 0 || /\b(ERROR|FATAL|PANIC):/.test(said)) {
    throw Object.assign(new Error('the database could not be created'), { stderr: said });
  }
}

/**
 * What killed starts have left. An initdb that has outlived its parent may still be writing there; it ends when
 * it finds its files gone, and what it has made meanwhile goes the next time.
 */
export async function removeDrafts(home: string): Promise<void> {
  for (const name of await readdir(home)) {
    if (!/-new-[0-9a-f]+$/.test(name)) continue;
    await rm(path.join(home, name), { recursive: true, force: true, maxRetries: 3 }).catch(
      unless('ENOTEMPTY'),
    );
  }
}

export async function syncDirectory(directory: string): Promise<void> {
  const handle = await open(directory, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

export type Launch = {
  pid: number;
  /** The exit code or signal once it has ended, else null. */
  ended: () => string | null;
  /** Where in the log file its own lines begin. */
  logOffset: number;
};

/** Starts PostgreSQL in a process group of its own, so that Ctrl-C in a terminal reaches us and not it. */
export async function launchServer(
  binaries: Binaries,
  place: EmbeddedPlace,
  settings: Readonly<Record<string, string>>,
): Promise<Launch> {
  const log = await openLog(place);
  try {
    const given = {
      ...serverSettings,
      shared_buffers: `${chooseSharedBuffersMb(memoryBytes())}MB`,
      // The setting is a list: a path with a comma needs the quotes.
      unix_socket_directories: `"${place.socketDirectory.replaceAll('"', '""')}"`,
      ...settings,
    };
    const logOffset = (await log.stat()).size;
    const child = spawn(
      binaries.postgres,
      ['-D', place.cluster, ...Object.entries(given).flatMap(([name, value]) => ['-c', `${name}=${value}`])],
      {
        env: binaries.environment,
        cwd: place.cluster,
        detached: true,
        // A file and no pipe: it goes on writing after our death.
        stdio: ['ignore', log.fd, log.fd],
        ...place.serverUser,
      },
    );
    const pid = await pidOf(child);
    child.unref();
    let ending: string | null = null;
    child.on('exit', (code, signal) => {
      ending = signal ?? `code ${code ?? 'unknown'}`;
    });
    return { pid, ended: () => ending, logOffset };
  } finally {
    await log.close();
  }
}

async function pidOf(child: ChildProcess): Promise<number> {
  // Either comes at once; `once` rejects with the error when the program cannot be run.
  if (child.pid === undefined) await once(child, 'spawn');
  if (child.pid === undefined) throw new Error('PostgreSQL was not started');
  child.on('error', () => undefined);
  return child.pid;
}

async function openLog(place: EmbeddedPlace): Promise<FileHandle> {
  const log = await open(
    place.logFile,
    constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT | constants.O_NOFOLLOW,
    0o600,
  );
  if (place.owner !== null) await log.chown(place.owner.uid, place.owner.gid);
  return log;
}

/** Where in the log what is written from now on begins. */
export async function measureLog(place: EmbeddedPlace): Promise<number> {
  return lstat(place.logFile).then(
    ({ size }) => size,
    () => 0,
  );
}

/** The end of what the server has written since `logOffset`. */
export async function readLogTail(place: EmbeddedPlace, logOffset: number): Promise<string> {
  const log = await open(place.logFile, 'r');
  try {
    const { size } = await log.stat();
    const start = Math.max(size < logOffset ? 0 : logOffset, size - logTailBytes);
    const { buffer, bytesRead } = await log.read(Buffer.alloc(logTailBytes), 0, logTailBytes, start);
    return buffer.toString('utf8', 0, bytesRead).trim();
  } finally {
    await log.close();
  }
}

/**
 * Keeps the log file below its limit until the returned function is called: a full one is copied aside and
 * emptied. The server appends to what it has open, so that renaming would not help; a line written between the
 * two is lost. Where the system cannot watch files, this happens at each start only.
 */
export async function boundLog(place: EmbeddedPlace): Promise<() => void> {
  let isBusy = false;
  const rotate = async () => {
    if (isBusy) return;
    isBusy = true;
    try {
      if ((await lstat(place.logFile)).size <= logBytesMax) return;
      await copyFile(place.logFile, `${place.logFile}.1`);
      await truncate(place.logFile);
    } catch {
      // A full disk, or another supervisor was quicker: the next line tries again.
    } finally {
      isBusy = false;
    }
  };
  await rotate();
  try {
    const watcher = watch(place.logFile, { persistent: false }, () => void rotate());
    watcher.on('error', () => {
      watcher.close();
    });
    return () => {
      watcher.close();
    };
  } catch {
    return () => undefined;
  }
}

/**
 * The process id of the running server of this cluster, or null. `postmaster.pid` is only a hint: after a kill it names
 * a process that is gone, or one that has got the same number since.
 */
export async function findPostmaster(place: EmbeddedPlace): Promise<number | null> {
  const content = await readPidFile(place);
  const pid = Number(content?.split('\n')[0]);
  if (!Number.isSafeInteger(pid) || pid <= 1) return null;
  return (await isServerOf(pid, place.cluster)) ? pid : null;
}

/** A server that finds the number of some other live process of its user in this file refuses to start. */
export async function removeStalePidFile(place: EmbeddedPlace): Promise<void> {
  await rm(path.join(place.cluster, 'postmaster.pid'), { force: true });
}

async function readPidFile(place: EmbeddedPlace): Promise<string | null> {
  return (await readFile(path.join(place.cluster, 'postmaster.pid'), 'utf8').catch(unless('ENOENT'))) ?? null;
}

/** PostgreSQL's processes work in the cluster's directory. A zombie has none any more. */
export async function isServerOf(pid: number, cluster: string): Promise<boolean> {
  if (process.platform === 'linux') {
    try {
      const [program, directory] = await Promise.all([
        readlink(`/proc/${pid}/exe`),
        readlink(`/proc/${pid}/cwd`),
      ]);
      return path.basename(program).startsWith('postgres') && directory === cluster;
    } catch (cause) {
      // No such process, or one of another user, which cannot be ours.
      if (['ENOENT', 'ESRCH', 'EACCES', 'EPERM'].includes(errorCode(cause) ?? '')) return false;
      throw cause;
    }
  }
  const { stdout } = await run('ps', ['-ww', '-o', 'command=', '-p', String(pid)]).catch(() => ({
    stdout: '',
  }));
  return stdout.includes('postgres') && stdout.includes(`-D ${cluster} `);
}

/**
 * The processes of a server that was itself killed. They notice within a second or two, but until the last one
 * has gone no new server may start on their shared memory. Empty where the system has no /proc.
 */
export async function findOrphans(cluster: string): Promise<number[]> {
  if (process.platform !== 'linux') return [];
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name)).map(Number);
  const isOrphan = await Promise.all(pids.map((pid) => isServerOf(pid, cluster)));
  return pids.filter((_, index) => isOrphan[index]);
}

export type Probe =
  | { kind: 'ready'; client: pg.Client; ended: Promise<void> }
  /** A server is there, but takes no connection at present: starting, stopping, recovering, full. */
  | { kind: 'busy'; detail: string }
  | { kind: 'absent'; detail: string };

/**
 * Connects as a supervisor. That the socket takes a connection means little: it does so before recovery has
 * ended. Rejects for what no waiting mends, such as a database that is missing.
 */
export async function connectSupervisor(place: EmbeddedPlace): Promise<Probe> {
  const client = new pg.Client({
    host: place.socketDirectory,
    // Given outright, or PGPORT and PGSSLMODE in the environment would count.
    port: socketPort,
    ssl: false,
    user: databaseName,
    database: databaseName,
    application_name: supervisorName,
    connectionTimeoutMillis: connectTimeoutMs,
    query_timeout: connectTimeoutMs,
  });
  client.on('error', () => undefined);
  // Listened for from the start: the end may come before the caller is ready for it.
  const ended = new Promise<void>((resolve) => client.once('end', resolve));
  try {
    await client.connect();
    // A server whose files were deleted under it lives on for up to a minute, and keeps its socket.
    const { rows } = await client.query<{ pidFile: string | null }>(
      `select pg_read_file('postmaster.pid', 0, 4096, true) as "pidFile"`,
    );
    const served = firstLine(rows[0]?.pidFile ?? null);
    if (served !== undefined && served === firstLine(await readPidFile(place))) {
      return { kind: 'ready', client, ended };
    }
    await client.end();
    return { kind: 'busy', detail: 'the server that answers does not run on these files' };
  } catch (cause) {
    await client.end().catch(() => undefined);
    return classifyFailure(cause);
  }
}

function firstLine(text: string | null): string | undefined {
  return text?.split('\n')[0];
}

/** SQLSTATE classes that pass: connection trouble, out of resources, operator intervention (57P03: starting up). */
const passingStates = /^(08|53|57)/;

function classifyFailure(cause: unknown): Probe {
  if (!(cause instanceof Error)) throw cause;
  if (cause instanceof pg.DatabaseError) {
    if (!passingStates.test(cause.code ?? '')) throw cause;
    return { kind: 'busy', detail: cause.message };
  }
  const code = errorCode(cause);
  if (code === 'ENOENT' || code === 'ECONNREFUSED') return { kind: 'absent', detail: cause.message };
  if (code === 'EACCES') throw cause;
  return { kind: 'busy', detail: cause.message };
}

/** How many supervisors besides this one are connected. */
export async function countOtherSupervisors(client: pg.Client): Promise<number> {
  const { rows } = await client.query<{ others: number }>(
    `select count(*)::int as others
     from pg_stat_activity
     where application_name = $1
       and pid <> pg_backend_pid()`,
    [supervisorName],
  );
  return rows[0]?.others ?? 0;
}

/** Sends a signal; false when the process is gone. */
export function signalProcess(pid: number, signal: NodeJS.Signals): boolean {
  try {
    process.kill(pid, signal);
    return true;
  } catch (cause) {
    if (errorCode(cause) === 'ESRCH') return false;
    throw cause;
  }
}
