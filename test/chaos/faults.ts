import { setTimeout as delay } from 'node:timers/promises';
import type { Installation } from './installation.ts';
import type { Ledger } from './load.ts';
import type { Random } from './random.ts';

/** `kill -9` of processes while the load goes on; each kind at a pace of its own, drawn from the seed. */
export type Victim = 'api' | 'worker' | 'postgres';

export type Kill = {
  victim: Victim;
  /** Which faults of the run it was one of. */
  stage: string;
  atMs: number;
  /** For PostgreSQL: when the next one took a connection. */
  readyAtMs: number | null;
  /** For a worker: how long its claims stayed its own; null where that was not watched. */
  claimsReturnedAfterMs: number | null;
};

export type FaultTools = {
  installation: Installation;
  ledger: Ledger;
  kills: Kill[];
  stage: string;
};

/** Between two kills, in milliseconds. */
const pausesMs: Readonly<Record<Victim, readonly [number, number]>> = {
  api: [500, 2_500],
  worker: [300, 1_500],
  postgres: [5_000, 10_000],
};

export function meanPauseMs(victim: Victim): number {
  const [low, high] = pausesMs[victim];
  return (low + high) / 2;
}

export async function killRepeatedly(
  tools: FaultTools,
  victim: Victim,
  count: number,
  random: Random,
): Promise<void> {
  for (let killed = 0; killed < count; killed += 1) {
    await delay(random.between(...pausesMs[victim]));
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
  // With other faults at the same time, nobody could say whose fault a delay is.
  if (tools.stage === 'worker') {
    kill.claimsReturnedAfterMs = await watchUntilNone(tools.installation, claimsOfProcess, pid, kill.atMs);
  }
}

const claimsOfProcess =
  'select from delivery_queue join workers on claimed_by = epoch where pid = $1 limit 1';

/** How long after `fromMs` the query found nothing of that process any more; null if that takes too long. */
export async function watchUntilNone(
  { ask }: Installation,
  query: string,
  pid: number,
  fromMs: number,
): Promise<number | null> {
  while (Date.now() - fromMs < startLimitMs) {
    if ((await ask(query, [pid])).length === 0) return Date.now() - fromMs;
    await delay(10);
  }
  return null;
}

async function killPostgres(tools: FaultTools): Promise<void> {
  const kill = note(tools, 'postgres');
  kill.readyAtMs = await tools.installation.killPostgres();
}

function note({ kills, stage }: FaultTools, victim: Victim): Kill {
  const kill = { victim, stage, atMs: Date.now(), readyAtMs: null, claimsReturnedAfterMs: null };
  kills.push(kill);
  return kill;
}
