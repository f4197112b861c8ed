/**
 * Keeps a PostgreSQL of our own running under the data directory.
 *
 * The server is not tied to the process that starts it: it has its own process group and outlives a `kill -9` of
 * ours, and the next start finds it and goes on with it. Any number of processes may supervise the same server
 * (a second `serve`, an operator command beside it). Each holds one connection, named `postillion-supervisor`,
 * and is in one of these states:
 *
 *   starting    connects; if there is no answer, takes the lock, looks again, and starts PostgreSQL
 *   watching    waits for its connection to end. Nothing is polled: when PostgreSQL is killed, the kernel says so
 *   restarting  as starting, with a growing pause between failures, until it succeeds or is stopped
 *   stopping    takes the lock; leaves PostgreSQL alone if other supervisors are connected, else shuts it down
 *
 * There are never two servers on one data directory. Making the files, starting and stopping are done under a
 * lock that the kernel frees when its holder dies (embedded-lock.ts), and only after seeing, under the lock, that
 * no server runs. The files are made in a directory beside their place and renamed. The second safeguard
 * is PostgreSQL's own interlock of pid file and shared memory; it alone would not do, because two starts that both
 * find a pid file of a killed server can each remove the other's.
 *
 * Not promised: that a connection made without a supervisor keeps the server running; that settings changed
 * between two starts count before the server itself has been started anew; help across machines, or containers,
 * that share the directory.
 */
import type { Clock } from '../clock.ts';
import { sleep, systemClock } from '../clock.ts';
import { type Log, silentLog } from '../log.ts';
import { type Binaries, findNativeDirectory, prepareBinaries } from './embedded-binaries.ts';
import { withLock } from './embedded-lock.ts';
import { type EmbeddedPlace, preparePlace } from './embedded-place.ts';
import {
  boundLog,
  connectSupervisor,
  countOtherSupervisors,
  createClusterIfMissing,
  databaseName,
  findOrphans,
  findPostmaster,
  isServerOf,
  type Launch,
  launchServer,
  measureLog,
  type Probe,
  readLogTail,
  removeStalePidFile,
  signalProcess,
} from './embedded-server.ts';

export type EmbeddedPostgres = {
  /** For `pg`: `host` is the directory of the Unix socket, its port 5432, without a password and without TLS. */
  connection: { host: string; user: string; database: string };
  /**
   * Ends the supervision, and PostgreSQL with it unless other supervisors are connected. Resolves when PostgreSQL
   * has exited. Connections that are still open are cut; transactions under way roll back.
   */
  stop: () => Promise<void>;
};

export type EmbeddedPostgresOptions = {
  /** Everything is kept in `postgres/` below it; see embedded-place.ts for what lies where, and for root. */
  dataDirectory: string;
  logger?: Pick<Log, 'info' | 'warn' | 'error'>;
  /** PostgreSQL parameters by name, over the defaults. They count when this process starts the server. */
  settings?: Record<string, string>;
  /** Called each time the database can be reached again after it was lost. */
  onRestart?: () => void;
  clock?: Clock;
};

type Supervisor = {
  clock: Clock;
  log: Pick<Log, 'info' | 'warn' | 'error'>;
  place: EmbeddedPlace;
  settings: Record<string, string>;
};

type Sentinel = Extract<Probe, { kind: 'ready' }>;

/** Shorter: recovery of a big log counts as failure. Longer: the person at the terminal learns of a failure late. */
const startTimeoutMs = 30_000;

/** The holder of the lock may be making the files on a slow disk, and starting the server afterwards. */
const startLockWaitMsMax = 90_000;

/** A process that ends must not hang on another one that does not. */
const stopLockWaitMsMax = 15_000;

/** The last checkpoint may have hundreds of megabytes to write. After it the server is made to quit at once. */
const shutdownTimeoutMs = 30_000;
const quitTimeoutMs = 5_000;

/** The server starts in 40 ms and recovers in some hundreds; each look costs it a process. */
const lookIntervalMsMin = 10;
const lookIntervalMsMax = 50;

/** A start that fails at once, such as on a full disk, is tried again at this pace. */
const restartPauseMsMin = 100;
const restartPauseMsMax = 2_000;

/**
 * Starts PostgreSQL in `dataDirectory`, or adopts the one that runs there already, and keeps it running until
 * `stop` is called. Rejects with a sentence, and with what PostgreSQL has said, when it is not ready within 30 s.
 */
export async function startEmbeddedPostgres(options: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const supervisor: Supervisor = {
    clock: options.clock ?? systemClock,
    log: options.logger ?? silentLog,
    place: await preparePlace(options.dataDirectory),
    settings: options.settings ?? {},
  };
  const first = await connectOrStart(supervisor);
  const stopBounding = await boundLog(supervisor.place);
  const stopping = new AbortController();
  const supervision = superviseUntil(stopping.signal, supervisor, first, options.onRestart);

  let stopped: Promise<void> | null = null;
  return {
    connection: { host: supervisor.place.socketDirectory, user: databaseName, database: databaseName },
    stop: () => {
      stopped ??= (async () => {
        stopping.abort();
        stopBounding();
        await leave(supervisor, await supervision);
      })();
      return stopped;
    },
  };
}

/** Never rejects. Resolves, once `signal` aborts, to the connection that is open then, or null. */
async function superviseUntil(
  signal: AbortSignal,
  supervisor: Supervisor,
  first: Sentinel,
  onRestart: (() => void) | undefined,
): Promise<Sentinel | null> {
  const aborted = new Promise<'aborted'>((resolve) => {
    signal.addEventListener('abort', () => {
      resolve('aborted');
    });
  });
  for (let sentinel = first; ;) {
    if ((await Promise.race([sentinel.ended, aborted])) === 'aborted') return sentinel;
    const lostAtMs = supervisor.clock.monotonicMs();
    supervisor.log.warn('lost the embedded PostgreSQL');
    const next = await connectAgain(signal, supervisor);
    if (next === null) return null;
    sentinel = next;
    supervisor.log.info(
      { durationMs: Math.round(supervisor.clock.monotonicMs() - lostAtMs) },
      'the embedded PostgreSQL can be reached again',
    );
    try {
      onRestart?.();
    } catch (error) {
      supervisor.log.error({ err: error }, 'what should follow a restart of PostgreSQL failed');
    }
  }
}

async function connectAgain(signal: AbortSignal, supervisor: Supervisor): Promise<Sentinel | null> {
  let pauseMs = restartPauseMsMin;
  while (!signal.aborted) {
    try {
      return await connectOrStart(supervisor, signal);
    } catch (error) {
      if (signal.aborted) break;
      supervisor.log.error(
        { err: error, retryAfterMs: pauseMs },
        'the embedded PostgreSQL could not be started again',
      );
    }
    // An abort ends the pause, and with it the loop.
    await sleep(supervisor.clock, pauseMs, signal).catch(() => undefined);
    pauseMs = Math.min(pauseMs * 2, restartPauseMsMax);
  }
  return null;
}

async function connectOrStart(supervisor: Supervisor, signal?: AbortSignal): Promise<Sentinel> {
  const { clock, place } = supervisor;
  const seen = await connectSupervisor(place);
  if (seen.kind === 'ready') return seen;
  return withLock(clock, lockOf(place), { waitMsMax: startLockWaitMsMax, ...(signal && { signal }) }, () =>
    startLocked(supervisor, signal),
  );
}

function lockOf({ lockDirectory, owner }: EmbeddedPlace) {
  return { directory: lockDirectory, owner };
}

/** Looks, and starts what is not there, until a connection succeeds or the time is over. */
async function startLocked(supervisor: Supervisor, signal?: AbortSignal): Promise<Sentinel> {
  const { clock, place } = supervisor;
  let giveUpAtMs = clock.monotonicMs() + startTimeoutMs;
  const logOffset = await measureLog(place);
  let binaries: Binaries | null = null;
  let launch: Launch | null = null;
  for (let intervalMs = lookIntervalMsMin; ; intervalMs = Math.min(intervalMs * 1.5, lookIntervalMsMax)) {
    const seen = await connectSupervisor(place);
    if (seen.kind === 'ready') return seen;
    signal?.throwIfAborted();
    if (clock.monotonicMs() > giveUpAtMs) throw await describeDelay(place, seen.detail, logOffset);

    if (launch !== null && launch.ended() !== null) {
      await refuseLastingFailure(place, launch);
      launch = null;
    }
    if (launch === null && seen.kind === 'absent' && (await findPostmaster(place)) === null) {
      if (binaries === null) {
        binaries = await prepareFiles(supervisor);
        giveUpAtMs = clock.monotonicMs() + startTimeoutMs;
      }
      // What is left of a killed server would hold up the next one until it notices, which takes a second or two.
      for (const pid of await findOrphans(place.cluster)) signalProcess(pid, 'SIGQUIT');
      await removeStalePidFile(place);
      launch = await launchServer(binaries, place, supervisor.settings);
      intervalMs = lookIntervalMsMin;
    }
    // Timers do not keep a process alive, but the lock that is held here does.
    await sleep(clock, intervalMs, signal);
  }
}

async function prepareFiles({ log, place, settings }: Supervisor): Promise<Binaries> {
  const binaries = await prepareBinaries({
    home: place.home,
    serverUser: place.serverUser,
    nativeDirectory: findNativeDirectory(),
    searchPath: process.env.PATH ?? '',
  });
  log.info({ source: binaries.source }, 'starting the embedded PostgreSQL');
  await createClusterIfMissing(binaries, place, settings);
  return binaries;
}

/**
 * The pid file and the shared memory of a server whose last processes are just ending are a matter of waiting, and
 * so is a signal that met the server on its way up. Everything else would fail again.
 */
async function refuseLastingFailure(place: EmbeddedPlace, launch: Launch): Promise<void> {
  const ended = launch.ended() ?? '';
  const tail = await readLogTail(place, launch.logOffset);
  if (ended.startsWith('SIG') || /lock file|shared memory block/.test(tail)) return;
  throw new Error(`PostgreSQL ended with ${ended} while starting. Its log (${place.logFile}) says:\n${tail}`);
}

/** What the log said before is of another start, and would lead astray: a server that stands still says nothing. */
async function describeDelay(place: EmbeddedPlace, detail: string, logOffset: number): Promise<Error> {
  const tail = await readLogTail(place, logOffset).catch(() => '');
  const log = tail === '' ? '' : ` Its log (${place.logFile}) says:\n${tail}`;
  const seconds = startTimeoutMs / 1_000;
  return new Error(`PostgreSQL in ${place.cluster} was not ready after ${seconds} s (${detail}).${log}`);
}

/** Never rejects because of PostgreSQL: a process that ends can do no more than say so. */
async function leave(supervisor: Supervisor, sentinel: Sentinel | null): Promise<void> {
  const { clock, log, place } = supervisor;
  try {
    await withLock(clock, lockOf(place), { waitMsMax: stopLockWaitMsMax }, () =>
      leaveLocked(supervisor, sentinel),
    );
  } catch (error) {
    log.error({ err: error }, 'the embedded PostgreSQL was left as it is');
  } finally {
    await sentinel?.client.end().catch(() => undefined);
  }
}

async function leaveLocked(supervisor: Supervisor, sentinel: Sentinel | null): Promise<void> {
  const { log, place } = supervisor;
  const connected = (await isAnswering(sentinel)) ? sentinel : await connectOnce(supervisor);
  const others = connected === null ? 0 : await countOtherSupervisors(connected.client);
  // Ended before the lock is given back: the next one to stop must not count this one.
  await connected?.client.end();
  if (others > 0) {
    log.info({ others }, 'the embedded PostgreSQL stays, others use it');
    return;
  }
  await shutDown(supervisor);
  log.info({ cluster: place.cluster }, 'the embedded PostgreSQL has stopped');
}

async function isAnswering(sentinel: Sentinel | null): Promise<boolean> {
  if (sentinel === null) return false;
  return sentinel.client.query('select 1').then(
    () => true,
    () => false,
  );
}

/** Waits for a server that is just coming up. Null when there is none; rejects when it takes too long. */
async function connectOnce({ clock, place }: Supervisor): Promise<Sentinel | null> {
  const giveUpAtMs = clock.monotonicMs() + stopLockWaitMsMax;
  for (;;) {
    const seen = await connectSupervisor(place);
    if (seen.kind === 'ready') return seen;
    if (seen.kind === 'absent' && (await findPostmaster(place)) === null) return null;
    if (clock.monotonicMs() > giveUpAtMs) throw new Error(`PostgreSQL does not answer: ${seen.detail}`);
    await sleep(clock, lookIntervalMsMax);
  }
}

async function shutDown({ clock, log, place }: Supervisor): Promise<void> {
  const pid = await findPostmaster(place);
  // SIGINT is its fast shutdown: it cuts connections, writes a checkpoint and ends.
  if (pid === null || !signalProcess(pid, 'SIGINT')) return;
  if (await hasEnded(clock, place, pid, shutdownTimeoutMs)) return;
  log.warn(
    { timeoutMs: shutdownTimeoutMs },
    'the embedded PostgreSQL takes too long to stop; its log is replayed next time',
  );
  signalProcess(pid, 'SIGQUIT');
  if (!(await hasEnded(clock, place, pid, quitTimeoutMs)))
    throw new Error(`PostgreSQL (process ${pid}) does not end`);
}

async function hasEnded(
  clock: Clock,
  place: EmbeddedPlace,
  pid: number,
  timeoutMs: number,
): Promise<boolean> {
  const giveUpAtMs = clock.monotonicMs() + timeoutMs;
  while (await isServerOf(pid, place.cluster)) {
    if (clock.monotonicMs() > giveUpAtMs) return false;
    await sleep(clock, lookIntervalMsMin);
  }
  return true;
}
