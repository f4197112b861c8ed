import { isDeepStrictEqual } from 'node:util';
import { type CrashPointResult, runCrashPoints } from './crash-points.ts';
import { emptyQueue, type Hurry } from './end.ts';
import {
  type Disturbed,
  type FaultTools,
  findZombieViolations,
  type Kill,
  killRepeatedly,
  meanPauseMs,
  type Zombie,
} from './faults.ts';
import { createInstallation, type Installation } from './installation.ts';
import { checkInvariants, type Findings } from './invariants.ts';
import { createLedger, drawEmail, drawEmailOrEvent, type Ledger, runLoad } from './load.ts';
import { createRandom } from './random.ts';
import {
  causeOutages,
  expectedMs,
  findOutageViolations,
  type Outage,
  type OutageFault,
  outageFaults,
  type OutageTools,
} from './outages.ts';
import { findOutageRecoveries, findRecoveries, type Recovery } from './recoveries.ts';
import { findOwnEnds } from './servers.ts';

const killingFaults = ['api', 'worker', 'postgres', 'all', 'zombie'] as const;
type KillingFault = (typeof killingFaults)[number];
export const faults = [...killingFaults, ...outageFaults, 'crash-points'] as const;
export type Fault = (typeof faults)[number];
/** All but the one that needs root and has the data directory in memory. */
export const usualFaults = faults.filter((fault) => fault !== 'disk');

export type ChaosPlan = {
  seed: number;
  /** Spread over all faults but the crash points, which send one each. */
  sends: number;
  kills: number;
  faults: readonly Fault[];
  /** How long each outage lasts; null, or nothing said, draws it from 10 to 30 s. */
  outageMs?: number | null;
};

export type ChaosReport = {
  findings: Findings;
  ledger: Ledger;
  kills: Kill[];
  outages: Outage[];
  recoveries: Recovery[];
  crashPoints: CrashPointResult[];
  hurry: Hurry;
  /** Where the logs of the processes and of the sink are, if anything was found. */
  evidence: string | null;
};

export type ChaosEvents = {
  /** Called with what is about to happen. */
  onStage: (sentence: string) => void;
  /** Called with a function that ends everything at once, for a run that is interrupted. */
  onStart: (abandon: () => Promise<void>) => void;
};

const clients = 12;

/** One run from a fresh installation to the comparison of what clients, database and sink say. */
export async function runChaos(plan: ChaosPlan, events: ChaosEvents): Promise<ChaosReport> {
  const installation = await createInstallation(undefined, { hasSmallDisk: plan.faults.includes('disk') });
  events.onStart(() => installation.remove(false));
  let isClean = false;
  try {
    const report = await runStages(installation, plan, events);
    isClean = report.findings.violations.length === 0;
    return { ...report, evidence: isClean ? null : installation.directory };
  } finally {
    await installation.remove(!isClean);
  }
}

async function runStages(
  installation: Installation,
  plan: ChaosPlan,
  { onStage }: ChaosEvents,
): Promise<Omit<ChaosReport, 'evidence'>> {
  const ledger = createLedger();
  const kills: Kill[] = [];
  const zombies: Zombie[] = [];
  const outages: Outage[] = [];
  const { api, workers } = installation;
  for (const server of [api, ...workers]) server.start();
  await Promise.all([api, ...workers].map((server) => server.whenReady()));

  const killing = killingFaults.filter((fault) => plan.faults.includes(fault));
  const causing = outageFaults.filter((fault) => plan.faults.includes(fault));
  const sends = plan.sends / (killing.length + causing.length);
  for (const stage of killing) {
    const share = { sends, kills: plan.kills / killing.length };
    onStage(`${stage}: ${Math.round(share.kills)} kills under ${Math.round(share.sends)} sends`);
    await runStage({ installation, ledger, kills, zombies }, { ...share, stage, seed: plan.seed });
  }
  for (const fault of causing) {
    if (fault === 'disk' && installation.disk === null) {
      onStage('disk: NOT DONE, since no file system could be mounted; it takes root');
      continue;
    }
    onStage(`${fault}: outages under ${Math.round(sends)} sends`);
    const tools = { installation, ledger, outages, outageMs: plan.outageMs ?? null };
    await runOutageStage(tools, { fault, sends, seed: plan.seed });
  }
  onStage('waiting for the queue to be empty');
  const hurry = await emptyQueue(installation);
  let crashPoints: CrashPointResult[] = [];
  if (plan.faults.includes('crash-points')) {
    onStage('crash points');
    crashPoints = await runCrashPoints(installation, ledger);
  }
  onStage('comparing');
  const findings = await checkInvariants(installation, ledger);
  const deliveries = await installation.sink.readDeliveries();
  findings.violations.push(
    ...findCrashPointViolations(crashPoints),
    ...findOwnEnds(installation),
    ...findZombieViolations(zombies),
    ...findOutageViolations(outages, ledger, deliveries),
  );
  return {
    findings,
    ledger,
    kills,
    outages,
    recoveries: [...findRecoveries(kills, ledger, deliveries), ...findOutageRecoveries(outages, ledger)],
    crashPoints,
    hurry,
  };
}

type Stage = { stage: KillingFault; sends: number; kills: number; seed: number };

/** The load is spread over the time that the kills are expected to take, and goes on while there are any. */
async function runStage(
  tools: Omit<FaultTools, 'stage'>,
  { stage, sends, kills: killsCount, seed }: Stage,
): Promise<void> {
  const { installation, ledger } = tools;
  const victims: Disturbed[] = stage === 'all' ? ['api', 'worker', 'postgres'] : [stage];
  // All kinds go on for the same time, each at its own pace.
  const rate = victims.reduce((sum, victim) => sum + 1 / meanPauseMs(victim), 0);
  const durationMs = killsCount / rate;
  const killsOver = new AbortController();
  const killing = Promise.all(
    victims.map((victim) =>
      killRepeatedly(
        { ...tools, stage },
        victim,
        { count: Math.max(Math.round(durationMs / meanPauseMs(victim)), 1), pauseMaxMs: durationMs },
        createRandom(seed, `${stage} ${victim}`),
      ),
    ),
  ).then(() => {
    killsOver.abort();
  });
  const random = createRandom(seed, `${stage} load`);
  const load = {
    name: stage,
    sends,
    clients,
    draw: (name: string) => drawEmailOrEvent(installation, name, random),
    perSecond: (sends * 1_000) / durationMs,
  };
  await runLoad(installation, ledger, load, random, killsOver.signal);
  await killing;
}

/** While bodies are held open, only the organization sends that holds none. */
async function runOutageStage(
  tools: OutageTools,
  { fault, sends, seed }: { fault: OutageFault; sends: number; seed: number },
): Promise<void> {
  const { installation, ledger, outageMs } = tools;
  const over = new AbortController();
  const causing = causeOutages(tools, fault, createRandom(seed, fault)).finally(() => {
    over.abort();
  });
  const last = installation.senders.at(-1) ?? installation.senders[0];
  const senders: Installation['senders'] = fault === 'bodies' ? [last] : installation.senders;
  const random = createRandom(seed, `${fault} load`);
  const load = {
    name: fault,
    sends,
    clients,
    draw: (name: string) => drawEmail({ ...installation, senders }, name, random),
    perSecond: (sends * 1_000) / expectedMs(fault, outageMs),
  };
  await Promise.all([causing, runLoad(installation, ledger, load, random, over.signal)]);
}

function findCrashPointViolations(results: readonly CrashPointResult[]): string[] {
  return results
    .filter(({ found, expected }) => !isDeepStrictEqual(found, expected))
    .map(({ name, found }) => `crash ${name}: ${JSON.stringify(found)}`);
}
