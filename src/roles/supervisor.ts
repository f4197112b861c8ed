/**
 * Runs a role in several processes, so that it uses several cores. To the database and to each other they are nodes
 * like any others: nothing that is claimed, locked or counted knows that they are on one machine. This process, the
 * supervisor, serves nothing. It does what there must be once:
 *
 * - **PostgreSQL.** The embedded one is started, kept running and stopped here; the processes connect to it.
 * - **Ports.** The processes share the socket that is opened here (`node:cluster`), and each accepts connections when it has
 *   time to. If they were accepted here and dealt out, those dealt to a process that was just killed would never be answered.
 * - **The schema.** The first process brings it up to date; the others begin when it has opened the database.
 * - **The greeting.** When all processes are ready, the first of them greets. A process that cannot start before that
 *   fails the start as a whole, and what it said is said once. One that is killed meanwhile is started again.
 * - **Metrics.** It listens for those who ask for them, asks the processes, and puts together what they say. One that
 *   does not answer in time is told as such, and keeps nobody waiting.
 * - **Stopping.** A signal is passed on to all, and they drain as each would alone. A second one ends them at once.
 * - **Deaths.** A process that ends by itself is started again, after longer and longer pauses if that happens again and
 *   again; the others go on.
 *
 * A process is told by messages what it is, and when to greet and to stop. If the supervisor is killed, their channel
 * breaks, and the processes drain and end (supervised.ts): none is left without a supervisor, and a new supervisor may
 * be started at once, since the ports were this one's. The embedded PostgreSQL outlives it, and the next one finds it.
 *
 * What others count of a machine as a whole is divided: each process knows its number (`ProcessShare`), and the first
 * alone does what cannot be divided (`processesMax` of providers; docs/operating.md has the table).
 *
 * Not promised: with port 0, another free port is taken if all processes are gone at the same moment.
 */
import cluster, { type Worker } from 'node:cluster';
import os from 'node:os';
import type { Config } from '../config.ts';
import { findPostgres } from '../installation/installation.ts';
import { sleep, stayUntil, systemClock } from '../platform/clock.ts';
import { createLog, type Log } from '../platform/log.ts';
import { createQuestions, type Questions } from '../platform/questions.ts';
import type { DatabaseAddress } from '../platform/postgres/database.ts';
import type { Role } from './serve.ts';
import type { MonitoringListener } from './monitoring/listener.ts';
import type { Question } from './monitoring/monitoring.ts';
import { describeStop, type StopReason, whenAskedToStop } from './stopping.ts';

/** What a process gets to know. `begin` is the first, and comes once, when the process listens. */
export type Order =
  | { kind: 'begin'; config: Config; number: number; of: number; address: DatabaseAddress }
  | { kind: 'greet' }
  | { kind: 'ask'; id: number; question: Question }
  | { kind: 'stop'; reason: StopReason };

/** What a process says. `listening` is the first; `failed` is the last, in words for the operator. */
export type Told =
  | { kind: 'listening' }
  | { kind: 'opened' }
  | { kind: 'ready' }
  | { kind: 'greeted' }
  | { kind: 'answer'; id: number; answer: unknown }
  | { kind: 'failed'; words: string };

/** What the operator has to know is its message. */
export class ProcessFailure extends Error {
  override readonly name = 'ProcessFailure';
}

/** What a busy process may need, with all that its limits let into memory. Fewer might be killed for want of memory. */
const bytesPerProcess = 512 * 1_048_576;

/** In how many processes a role runs. With both roles in one, as a first start has them, memory counts for more. */
export function countProcesses({ processes }: Pick<Config, 'processes'>, role: Role): number {
  if (processes !== null) return processes;
  if (role === 'all') return 1;
  // Of a container, where that has a limit; else it is zero, or more than there is.
  const allowedBytes = process.constrainedMemory() || Infinity;
  const places = Math.floor(Math.min(os.totalmem(), allowedBytes) / bytesPerProcess);
  return Math.max(1, Math.min(os.availableParallelism(), places));
}

/** Fewer would make a process's own requests and chores wait for each other. */
const connectionsMin = 4;

/** Each process at once would take longer than the pause if all are killed for want of memory. */
const restartPauseMsMin = 500;
const restartPauseMsMax = 30_000;

/** A process that has been ready for so long did not end because of its start. */
const steadyMs = 60_000;

type Supervision = {
  log: Log;
  /** Without its number. */
  begin: Omit<Extract<Order, { kind: 'begin' }>, 'number'>;
  /** By their numbers; those that are being started again are missing. */
  running: Map<number, Running>;
  /** Whether the first process has opened the database once, so that its schema is up to date. */
  isOpened: boolean;
  hasGreeted: boolean;
  /** Aborts when all are to end, with the reason. */
  stopping: AbortSignal;
};

type Running = {
  worker: Worker;
  questions: Questions<Question>;
  isListening: boolean;
  isBegun: boolean;
  readyAtMs: number | null;
};

type Ending = { exitCode: number | null; signal: string | null; words: string | null; wasSteady: boolean };

/** Serves in so many processes until a signal asks to stop; resolves when all of them have ended in good order. */
export async function supervise(config: Config, role: Role, processes: number): Promise<void> {
  const running: Supervision['running'] = new Map();
  const asked = whenAskedToStop(() => {
    for (const { worker } of running.values()) worker.process.kill('SIGKILL');
  });
  const log = await createLog(config.logLevel, { role });
  const { address, stop } = await findPostgres(config, log);
  const stopping = new AbortController();
  const stopAll = (reason: StopReason) => {
    if (!stopping.signal.aborted) log.info(describeStop(reason), 'stopping all processes');
    stopping.abort(reason);
    for (const { worker } of running.values()) tell(worker, { kind: 'stop', reason });
  };
  cluster.schedulingPolicy = cluster.SCHED_NONE;
  cluster.setupPrimary({ args: ['serve', '--role', role, '--supervised'] });
  const connectionsMax = Math.max(connectionsMin, Math.floor(config.databaseConnectionsMax / processes));
  const supervision: Supervision = {
    log,
    begin: {
      kind: 'begin',
      config: { ...config, databaseConnectionsMax: connectionsMax },
      of: processes,
      address,
    },
    running,
    isOpened: false,
    hasGreeted: false,
    stopping: stopping.signal,
  };
  let monitored: MonitoringListener | null = null;
  try {
    void asked.then(stopAll);
    monitored = await startMonitoringOf(supervision);
    const numbers = Array.from({ length: processes }, (_, index) => index + 1);
    const endings = numbers.map((number) =>
      keepRunning(supervision, number).catch((cause: unknown) => {
        // One that cannot start ends the others too.
        stopAll('failed_start');
        throw cause;
      }),
    );
    const failed = (await stayUntil(Promise.allSettled(endings))).find(({ status }) => status === 'rejected');
    if (failed?.status === 'rejected') throw failed.reason;
  } finally {
    await monitored?.stop();
    await stop();
    log.flush();
  }
}

/** Null where nobody wants to know. Loaded only then: a supervisor takes little memory. */
async function startMonitoringOf(supervision: Supervision): Promise<MonitoringListener | null> {
  const place = supervision.begin.config.metricsListener;
  if (place === null) return null;
  const { startMonitoringOfAll } = await import('./monitoring/all-processes.ts');
  const listener = await startMonitoringOfAll(place, {
    processes: supervision.begin.of,
    isStopping: () => supervision.stopping.aborted,
    ask: async (number, question) => {
      const running = supervision.running.get(number);
      return running?.isBegun === true ? running.questions.ask(question) : null;
    },
  });
  supervision.log.info({ url: listener.url }, 'metrics are served');
  return listener;
}

/** Ends when all are to end. Rejects with a ProcessFailure if the process cannot start, or does not end in good order. */
async function keepRunning(supervision: Supervision, number: number): Promise<void> {
  const { log, stopping } = supervision;
  let pauseMs = restartPauseMsMin;
  while (!stopping.aborted) {
    const { exitCode, signal, words, wasSteady } = await runOnce(supervision, number);
    if (stopping.aborted) {
      if (exitCode !== 0) throw new ProcessFailure(words ?? `Process ${number} did not end in good order.`);
      return;
    }
    if (words !== null && !supervision.hasGreeted) throw new ProcessFailure(words);
    if (wasSteady) pauseMs = restartPauseMsMin;
    log.error(
      { process: number, exit_code: exitCode, signal, reason: words, pause_ms: pauseMs },
      'a process has ended, and is started again',
    );
    // An abort ends the pause, and with it the loop.
    await sleep(systemClock, pauseMs, stopping).catch(() => undefined);
    pauseMs = Math.min(2 * pauseMs, restartPauseMsMax);
  }
}

function runOnce(supervision: Supervision, number: number): Promise<Ending> {
  const { running, stopping } = supervision;
  const worker = cluster.fork();
  const questions = createQuestions<Question>(systemClock, (id, question) => {
    tell(worker, { kind: 'ask', id, question });
  });
  const state: Running = { worker, questions, isListening: false, isBegun: false, readyAtMs: null };
  let words: string | null = null;
  running.set(number, state);
  worker.on('message', (told: Told) => {
    switch (told.kind) {
      case 'listening':
        // What it was told before is lost.
        state.isListening = true;
        // `stopAll` alone aborts it.
        if (stopping.aborted) tell(worker, { kind: 'stop', reason: stopping.reason as StopReason });
        else beginWhoMay(supervision);
        return;
      case 'opened':
        supervision.isOpened = true;
        beginWhoMay(supervision);
        return;
      case 'ready':
        state.readyAtMs = systemClock.monotonicMs();
        greetWhenAllAreReady(supervision);
        return;
      case 'greeted':
        supervision.hasGreeted = true;
        return;
      case 'answer':
        questions.answer(told.id, told.answer);
        return;
      case 'failed':
        words = told.words;
        return;
    }
  });
  return new Promise((resolve) => {
    const end = (exitCode: number | null, signal: string | null) => {
      running.delete(number);
      questions.end();
      const readyForMs = state.readyAtMs === null ? 0 : systemClock.monotonicMs() - state.readyAtMs;
      resolve({ exitCode, signal, words, wasSteady: readyForMs >= steadyMs });
    };
    worker.on('exit', end);
    worker.on('error', (cause) => {
      // Of one that runs, only its channel is broken, and it ends by that.
      if (worker.process.pid !== undefined) return;
      words = `Process ${number} cannot be started: ${cause.message}`;
      end(null, null);
    });
  });
}

function beginWhoMay({ running, begin, isOpened }: Supervision): void {
  for (const [number, state] of running) {
    if (!state.isListening || state.isBegun || (number > 1 && !isOpened)) continue;
    state.isBegun = true;
    tell(state.worker, { ...begin, number });
  }
}

function greetWhenAllAreReady({ running, begin, hasGreeted, log }: Supervision): void {
  const ready = [...running.values()].filter(({ readyAtMs }) => readyAtMs !== null);
  const first = running.get(1);
  if (hasGreeted || ready.length < begin.of || first === undefined) return;
  log.info({ processes: begin.of }, 'all processes are ready');
  tell(first.worker, { kind: 'greet' });
}

function tell(worker: Worker, order: Order): void {
  // It may be ending: then nothing is to be told.
  if (worker.isConnected()) worker.process.send(order, () => undefined);
}
