import { setTimeout as delay } from 'node:timers/promises';
import { workerLockClass } from '../../src/platform/queue/lease.ts';
import type { Installation } from './installation.ts';
import type { Ledger } from './load.ts';
import type { Random } from './random.ts';

/** `kill -9` of processes while the load goes on; each kind at a pace of its own, drawn from the seed. */
export type Victim = 'api' | 'worker' | 'postgres';

/**
 * A worker that lives on after it has lost its lease. No process is killed: the lease's session is severed, and every
 * other time the process is stopped (SIGSTOP) until it was buried and others have gone on with its work.
 */
export type Disturbed = Victim | 'zombie';

export type Kill = {
  victim: Disturbed;
  /** The stage of the run that it belongs to. */
  stage: string;
  atMs: number;
  /** For PostgreSQL: when the next one took a connection. */
  readyAtMs: number | null;
  /** For a worker: how long it took until its claims were returned; null where that was not watched. */
  claimsReturnedAfterMs: number | null;
};

/** A worker that has lost its lease; `fault` is what must not be said of it. */
export type Zombie = {
  epoch: number;
  stoodStill: boolean;
  buriedAfterMs: number | null;
  fault: string | null;
};

export type FaultTools = {
  installation: Installation;
  ledger: Ledger;
  kills: Kill[];
  zombies: Zombie[];
  stage: string;
};

/** Between two kills, in milliseconds. */
const pausesMs: Readonly<Record<Disturbed, readonly [number, number]>> = {
  api: [500, 2_500],
  worker: [300, 1_500],
  postgres: [5_000, 10_000],
  // The worker begins anew before the next one.
  zombie: [1_000, 3_000],
};

export function meanPauseMs(victim: Disturbed): number {
  const [low, high] = pausesMs[victim];
  return (low + high) / 2;
}

/** No pause is longer than `pauseMaxMs`, the time that all kills of a stage take: a few kills need not wait for one. */
export async function killRepeatedly(
  tools: FaultTools,
  victim: Disturbed,
  { count, pauseMaxMs }: { count: number; pauseMaxMs: number },
  random: Random,
): Promise<void> {
  for (let killed = 0; killed < count; killed += 1) {
    await delay(Math.min(random.between(...pausesMs[victim]), pauseMaxMs));
    switch (victim) {
      case 'api':
        await killApi(tools, random);
        break;
      case 'worker':
        await killWorker(tools, random);
        break;
      case 'postgres':
        await killPostgres(tools);
        break;
      case 'zombie':
        await makeZombie(tools, random, killed % 2 === 1);
        break;
    }
  }
}

/** Waits for the next API to serve, so that the kill has a recovery time; now and then it is killed while it starts. */
async function killApi(tools: FaultTools, random: Random): Promise<void> {
  const { api } = tools.installation;
  await api.kill();
  note(tools, 'api');
  api.start();
  if (random.isLucky(0.15)) {
    await delay(random.between(50, 600));
    await api.kill();
    note(tools, 'api');
    api.start();
  }
  await Promise.race([api.whenReady(), delay(startLimitMs)]);
}

const startLimitMs = 20_000;

async function killWorker(tools: FaultTools, random: Random): Promise<void> {
  const worker = random.pick(tools.installation.workers);
  const pid = worker.pid();
  await worker.kill();
  const kill = note(tools, 'worker');
  worker.start();
  // With other faults at the same time, the cause of a delay could not be told.
  if (tools.stage === 'worker') {
    kill.claimsReturnedAfterMs = await watchUntilNone(tools.installation, claimsOfProcess, pid, kill.atMs);
  }
}

const claimsOfProcess = `
  (select 1 from delivery_queue join workers on claimed_by = epoch where pid = $1 limit 1)
  union all (select 1 from delivery_slices join workers on claimed_by = epoch where pid = $1 limit 1)`;

/** How long after `fromMs` the query found no more rows of that process or worker; null if that takes too long. */
export async function watchUntilNone(
  { ask }: Installation,
  query: string,
  pidOrEpoch: number,
  fromMs: number,
  limitMs = startLimitMs,
): Promise<number | null> {
  while (Date.now() - fromMs < limitMs) {
    if ((await ask(query, [pidOrEpoch])).length === 0) return Date.now() - fromMs;
    await delay(10);
  }
  return null;
}

/** The lease is found by its lock, the guardians by name: a process that is stopped ends neither session. */
const severLease = `
  select pg_terminate_backend(pid)
  from pg_locks
  where locktype = 'advisory' and classid = ${workerLockClass} and objid = $1 and granted
    and database = (select oid from pg_database where datname = current_database())`;
const severGuardians = `
  select pg_terminate_backend(pid)
  from pg_stat_activity
  where datname = current_database() and application_name = 'postillion-guardian'`;
/** Rows that still carry the epoch of a worker that was buried. */
const leftOfEpoch = `
  select 'is registered' as what from workers where epoch = $1
  union all select 'has announced a hand-off' from hand_offs where epoch = $1
  union all select 'has claimed a job' from delivery_queue where claimed_by = $1
  union all select 'has claimed a slice' from delivery_slices where claimed_by = $1`;

/**
 * The open transaction of a stopped process holds its rows. What needs them, such as the burial, waits until PostgreSQL
 * ends the session after a minute (`idle_in_transaction_session_timeout`); here after two seconds.
 */
const endStillTransactions = `
  select pg_terminate_backend(holder.pid)
  from pg_stat_activity waiting
  cross join unnest(pg_blocking_pids(waiting.pid)) blocking (pid)
  join pg_stat_activity holder on holder.pid = blocking.pid
  where waiting.datname = current_database() and holder.state like 'idle in transaction%'
    and holder.application_name <> 'postillion-guardian'
    and holder.state_change < now() - interval '2 seconds'`;
const burialRoundMs = 2_500;
/** Each ends what the burial waits for by then. */
const burialRoundsMax = 8;

/** Returns how long the burial took, or null if it did not happen. */
async function waitForBurial(installation: Installation, epoch: number): Promise<number | null> {
  const severedAtMs = Date.now();
  for (let round = 0; round < burialRoundsMax; round += 1) {
    const roundEndsMs = Date.now() - severedAtMs + burialRoundMs;
    const afterMs = await watchUntilNone(installation, registered, epoch, severedAtMs, roundEndsMs);
    if (afterMs !== null) return afterMs;
    await installation.ask(endStillTransactions, []);
  }
  return null;
}

const registered = 'select from workers where epoch = $1';

async function makeZombie(tools: FaultTools, random: Random, standsStill: boolean): Promise<void> {
  const { ask, workers } = tools.installation;
  const pid = random.pick(workers).pid();
  const [worker] = await ask<{ epoch: number }>('select epoch from workers where pid = $1', [pid]);
  // It lost its lease in an earlier round and did not begin anew, which was reported then.
  if (worker === undefined) return;
  const { epoch } = worker;
  const zombie: Zombie = { epoch, stoodStill: standsStill, buriedAfterMs: null, fault: null };
  tools.zombies.push(zombie);
  if (standsStill) process.kill(pid, 'SIGSTOP');
  note(tools, 'zombie');
  try {
    await ask(severLease, [epoch]);
    if (standsStill) await ask(severGuardians, []);
    zombie.buriedAfterMs = await waitForBurial(tools.installation, epoch);
    // Time for other workers to claim its jobs.
    if (standsStill) await delay(random.between(500, 2_000));
  } finally {
    if (standsStill) process.kill(pid, 'SIGCONT');
  }
  if (zombie.buriedAfterMs === null) {
    zombie.fault = 'was not buried';
    return;
  }
  const isBack = 'select where not exists (select from workers where pid = $1)';
  if ((await watchUntilNone(tools.installation, isBack, pid, Date.now())) === null) {
    zombie.fault = 'did not begin anew';
    return;
  }
  const [left] = await ask<{ what: string }>(leftOfEpoch, [epoch]);
  zombie.fault = left?.what ?? null;
}

/** A sentence for each worker that did not notice its loss. Whether a message left twice, the invariants check. */
export function findZombieViolations(zombies: readonly Zombie[]): string[] {
  return zombies
    .filter(({ fault }) => fault !== null)
    .map(
      ({ epoch, stoodStill, fault }) =>
        `worker ${epoch}, whose lease was severed${stoodStill ? ' while it stood still' : ''}, ${fault ?? ''}`,
    );
}

async function killPostgres(tools: FaultTools): Promise<void> {
  const kill = note(tools, 'postgres');
  kill.readyAtMs = await tools.installation.killPostgres();
}

function note({ kills, stage }: FaultTools, victim: Disturbed): Kill {
  const kill = { victim, stage, atMs: Date.now(), readyAtMs: null, claimsReturnedAfterMs: null };
  kills.push(kill);
  return kill;
}
