/**
 * What an installation waits through instead of dying of it. Each outage goes on for a while under load and is then
 * over: PostgreSQL stands still, is cut off, has no room on its disk, or two organizations hold requests open.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { type SilentProxy, startSilentProxy } from '../support/silent-proxy.ts';
import { watchUntilNone } from './faults.ts';
import type { Installation } from './installation.ts';
import type { Ledger } from './load.ts';
import type { Random } from './random.ts';
import { holdBodiesOpen } from './unfinished-bodies.ts';

export const outageFaults = ['stopped', 'cut', 'bodies', 'disk'] as const;
export type OutageFault = (typeof outageFaults)[number];

export type Outage = {
  fault: OutageFault;
  /** Whom or what it concerns. */
  what: string;
  hitsApi: boolean;
  /** Neither worker can write anything down, and so may hand nothing off. */
  hitsAllWorkers: boolean;
  beganAtMs: number;
  /** When it was over, in epoch milliseconds; infinite as long as it is not. */
  endedAtMs: number;
  /** How `/readyz` answered meanwhile. */
  readiness: { status: number; afterMs: number }[];
  /** For a worker that was cut off: from when PostgreSQL had ended its connections. */
  claimsReturnedAfterMs: number | null;
  /** What requests with unfinished bodies were answered. */
  unfinished: ReadonlyMap<string, number>;
};

export type OutageTools = {
  installation: Installation;
  ledger: Ledger;
  outages: Outage[];
  /** How long each lasts; null draws it. */
  outageMs: number | null;
};

const usualMs = [10_000, 30_000] as const;
const pausesMs = [2_000, 5_000] as const;
const roundsOf = { stopped: 3, bodies: 2, disk: 2 };
const cutOff: readonly { what: string; api: boolean; workers: number }[] = [
  { what: 'the API', api: true, workers: 0 },
  { what: 'a worker', api: false, workers: 1 },
  { what: 'both workers', api: false, workers: 2 },
  { what: 'the API and both workers', api: true, workers: 2 },
];
/** 15 s without a word, and three keepalives 5 s apart: what sessions are given (database.ts). */
const serverNoticesAfterMs = 30_000;
/** The row is deleted in the transaction that returns the worker's claims, even if it has none. */
const rowOfWorker = 'select from workers where pid = $1';
const startLimitMs = 60_000;
/** Long enough for the first of them to be refused, after ten seconds, and begun again. */
const bodiesMsMin = 25_000;
const bodiesOfEach = 1_000;

/** Roughly how long they take in all, so that the load can be spread over them. */
export function expectedMs(fault: OutageFault, outageMs: number | null): number {
  const rounds = fault === 'cut' ? cutOff.length : roundsOf[fault];
  return rounds * ((outageMs ?? mean(usualMs)) + mean(pausesMs));
}

export async function causeOutages(tools: OutageTools, fault: OutageFault, random: Random): Promise<void> {
  switch (fault) {
    case 'stopped':
      for (let round = 0; round < roundsOf.stopped; round += 1) await stopPostgres(tools, random);
      return;
    case 'cut':
      return cutEachOff(tools, random);
    case 'bodies':
      for (let round = 0; round < roundsOf.bodies; round += 1) await holdBodies(tools, random);
      return;
    case 'disk':
      for (let round = 0; round < roundsOf.disk; round += 1) await fillDisk(tools, random, round);
      return;
  }
}

async function stopPostgres(tools: OutageTools, random: Random): Promise<void> {
  const outage = await beginSoon(tools, random, 'stopped', 'PostgreSQL');
  outage.hitsApi = true;
  outage.hitsAllWorkers = true;
  const goOn = await tools.installation.stopPostgres();
  outage.beganAtMs = Date.now();
  await wait(tools, outage, lengthMs(tools, random));
  goOn();
  await end(tools, outage);
}

/** Restarts the processes so that each reaches PostgreSQL through a proxy, and afterwards without one. */
async function cutEachOff(tools: OutageTools, random: Random): Promise<void> {
  const { api, workers, databaseAddress } = tools.installation;
  const servers = [api, ...workers];
  const proxies = await Promise.all(servers.map(() => startSilentProxy(databaseAddress)));
  const restart = async (settingsOf: (index: number) => Record<string, string>) => {
    await Promise.all(servers.map((server) => server.kill()));
    for (const [index, server] of servers.entries()) server.start(settingsOf(index));
    const ready = Promise.all(servers.map((server) => server.whenReady()));
    const late = delay(startLimitMs, 'late' as const, { ref: false });
    if ((await Promise.race([ready, late])) === 'late')
      throw new Error('a process does not start, see its log');
  };
  try {
    await restart((index) => ({ DATABASE_URL: proxies[index]?.address.url ?? '' }));
    for (const victims of cutOff) {
      const ofApi = proxies.slice(0, victims.api ? 1 : 0);
      const ofWorkers = proxies.slice(1, 1 + victims.workers);
      await cutOneOff(tools, random, victims, [...ofApi, ...ofWorkers]);
    }
  } finally {
    await restart(() => ({}));
    await Promise.all(proxies.map((proxy) => proxy.stop()));
  }
}

async function cutOneOff(
  tools: OutageTools,
  random: Random,
  { what, api, workers }: (typeof cutOff)[number],
  proxies: readonly SilentProxy[],
): Promise<void> {
  const outage = await beginSoon(tools, random, 'cut', what);
  outage.hitsApi = api;
  outage.hitsAllWorkers = workers === 2;
  const claimsOf = !api && workers === 1 ? tools.installation.workers[0].pid() : null;
  for (const proxy of proxies) proxy.fallSilent();
  outage.beganAtMs = Date.now();
  const wantedMs = lengthMs(tools, random);
  await wait(
    tools,
    outage,
    claimsOf === null ? Math.min(wantedMs, serverNoticesAfterMs) : serverNoticesAfterMs,
  );
  if (claimsOf !== null || wantedMs >= serverNoticesAfterMs) {
    for (const proxy of proxies) proxy.endAtServer();
    if (claimsOf !== null) {
      outage.claimsReturnedAfterMs = await watchUntilNone(
        tools.installation,
        rowOfWorker,
        claimsOf,
        Date.now(),
      );
    }
    await wait(tools, outage, wantedMs - serverNoticesAfterMs);
  }
  for (const proxy of proxies) proxy.speak();
  await end(tools, outage);
}

async function holdBodies(tools: OutageTools, random: Random): Promise<void> {
  const outage = await beginSoon(tools, random, 'bodies', 'two organizations');
  const { apiUrl, senders } = tools.installation;
  outage.beganAtMs = Date.now();
  const bodies = holdBodiesOpen({ apiUrl, senders: senders.slice(0, -1), countOfEach: bodiesOfEach }, random);
  outage.unfinished = bodies.answers;
  await wait(tools, outage, Math.max(lengthMs(tools, random), bodiesMsMin));
  outage.endedAtMs = Date.now();
  bodies.stop();
}

/** Every other time PostgreSQL has no room for its log either, and ends all its processes. */
async function fillDisk(tools: OutageTools, random: Random, round: number): Promise<void> {
  const { disk } = tools.installation;
  if (disk === null) return;
  const needsLog = round % 2 === 1;
  const outage = await beginSoon(tools, random, 'disk', needsLog ? 'tables and log' : 'tables');
  outage.hitsApi = true;
  const free = await disk.fill();
  outage.beganAtMs = Date.now();
  if (needsLog) await useUpLog(tools.installation);
  await wait(tools, outage, lengthMs(tools, random));
  await free();
  await end(tools, outage);
}

/** Some of its segments are made in advance; each switch takes one. */
const segmentsMax = 100;

async function useUpLog({ connectAlone }: Installation): Promise<void> {
  try {
    const client = await connectAlone();
    client.on('error', () => undefined);
    for (let segment = 0; segment < segmentsMax; segment += 1) {
      await client.query("select pg_logical_emit_message(false, 'chaos', 'disk')");
      await client.query('select pg_switch_wal()');
    }
    await client.end();
  } catch {
    // PostgreSQL has ended, which is what this is for.
  }
}

async function beginSoon(
  { outages }: OutageTools,
  random: Random,
  fault: OutageFault,
  what: string,
): Promise<Outage> {
  await delay(random.between(...pausesMs));
  const outage: Outage = {
    fault,
    what,
    hitsApi: false,
    hitsAllWorkers: false,
    beganAtMs: Date.now(),
    endedAtMs: Infinity,
    readiness: [],
    claimsReturnedAfterMs: null,
    unfinished: new Map(),
  };
  outages.push(outage);
  return outage;
}

const lookEveryMs = 500;
const readinessLimitMs = 10_000;

/** Asks `/readyz` all the while. */
async function wait({ installation }: OutageTools, outage: Outage, forMs: number): Promise<void> {
  const untilMs = Date.now() + forMs;
  while (Date.now() < untilMs) {
    const askedAtMs = Date.now();
    const status = await fetch(`${installation.apiUrl}/readyz`, {
      signal: AbortSignal.timeout(readinessLimitMs),
    }).then(
      async (response) => {
        await response.arrayBuffer();
        return response.status;
      },
      () => 0,
    );
    outage.readiness.push({ status, afterMs: Date.now() - askedAtMs });
    await delay(Math.max(Math.min(lookEveryMs, untilMs - Date.now()), 0));
  }
}

const recoveryLimitMs = 60_000;

/** Waits until something was accepted again, so that the next outage meets a service that works. */
async function end({ ledger }: OutageTools, outage: Outage): Promise<void> {
  const endedAtMs = Date.now();
  outage.endedAtMs = endedAtMs;
  const isAcceptedAgain = () =>
    ledger.replies.some(({ answer, beganAtMs }) => answer === '202' && beganAtMs >= endedAtMs);
  while (!isAcceptedAgain() && Date.now() - endedAtMs < recoveryLimitMs) await delay(lookEveryMs);
}

function lengthMs({ outageMs }: OutageTools, random: Random): number {
  return outageMs ?? random.between(...usualMs);
}

function mean([low, high]: readonly [number, number]): number {
  return (low + high) / 2;
}

/** How long a hand-off that was announced before the outage may take to end. */
const handOffRestMs = 5_000;

/** A sentence for each thing that may not happen in an outage. */
export function findOutageViolations(
  outages: readonly Outage[],
  { replies }: Pick<Ledger, 'replies'>,
  deliveries: readonly { atMs: number }[],
): string[] {
  return outages.flatMap((outage) => {
    const { fault, what, beganAtMs, endedAtMs, readiness, hitsApi, hitsAllWorkers, unfinished } = outage;
    const name = `${fault}, ${what}`;
    const handedOff = deliveries.filter(
      ({ atMs }) => hitsAllWorkers && atMs > beganAtMs + handOffRestMs && atMs < endedAtMs,
    ).length;
    const refused = replies.filter(
      (reply) => fault === 'bodies' && !isUsual(reply.answer) && isDuring(outage, reply),
    );
    const unanswered = readiness.filter(({ status }) => status !== 200 && status !== 503).length;
    const wronglyReady = readiness.filter(
      ({ status }) => hitsApi && fault !== 'disk' && status === 200,
    ).length;
    const odd = [...unfinished.keys()].filter((answer) => answer !== '408' && answer !== '503');
    return [
      ...(handedOff > 0 ? [`${name}: ${handedOff} handed off by workers that could write nothing down`] : []),
      ...(refused.length > 0 ? [`${name}: the third was answered ${refused[0]?.answer ?? ''}`] : []),
      ...(unanswered > 0 ? [`${name}: /readyz gave no answer, ${unanswered} times`] : []),
      ...(wronglyReady > 0 ? [`${name}: /readyz said that all is well, ${wronglyReady} times`] : []),
      ...(odd.length > 0 ? [`${name}: unfinished requests ended with ${odd.join(', ')}`] : []),
      ...(fault === 'bodies' && !unfinished.has('408') ? [`${name}: no unfinished request got 408`] : []),
    ];
  });
}

/** A key that is used twice at the same moment is refused once, whatever else goes on. */
function isUsual(answer: string): boolean {
  return answer === '202' || answer === '503 concurrent_idempotent_requests';
}

/** Whether the request waited in the outage for some of its time. */
export function isDuring(
  { beganAtMs, endedAtMs }: Outage,
  reply: { beganAtMs: number; endedAtMs: number },
): boolean {
  return reply.endedAtMs >= beganAtMs && reply.beganAtMs <= endedAtMs;
}
