import { countKills, type Interval, killMany } from './campaign.ts';
import { emptyQueue, type Hurry } from './end.ts';
import type { Victim } from './faults.ts';
import { createInstallation, type Installation } from './installation.ts';
import { createLedger, type Ledger, runLoad, type Send } from './load.ts';
import { createRandom, type Random } from './random.ts';

/** What the runs have in common that send single messages to a remote side, which may misbehave. */

export type MessagesReport = {
  kills: Record<Victim, number>;
  counts: Record<string, number>;
  ledger: Ledger;
  lost: number;
  repeats: number;
  hurry: Hurry;
  seconds: number;
  /** A sentence each, with an example. */
  violations: string[];
  evidence: string | null;
};

export type OnStart = (abandon: () => Promise<void>) => void;

/** The remote side: a process of its own, which nothing kills. */
type Remote = { stop: () => Promise<void> };

/**
 * One run on an installation of its own. `prepare` starts the remote side, and returns it with the settings that lead
 * there. The directory stays only if something was found.
 */
export async function runOnInstallation<OfRemote extends Remote, Report extends { violations: string[] }>(
  onStart: OnStart,
  prepare: (
    ...parameters: Parameters<Parameters<typeof createInstallation>[0] & object>
  ) => Promise<{ remote: OfRemote; settings: Readonly<Record<string, string>> }>,
  run: (installation: Installation, remote: OfRemote) => Promise<Report>,
): Promise<Report & { evidence: string | null }> {
  const remotes: OfRemote[] = [];
  const installation = await createInstallation(async (...parameters) => {
    const { remote, settings } = await prepare(...parameters);
    remotes.push(remote);
    return settings;
  });
  const remove = async (keepsDirectory: boolean) => {
    await Promise.all(remotes.map((remote) => remote.stop()));
    await installation.remove(keepsDirectory);
  };
  onStart(() => remove(false));
  let isClean = false;
  try {
    const [remote] = remotes as [OfRemote]; // It was started above.
    const report = await run(installation, remote);
    isClean = report.violations.length === 0;
    return { ...report, evidence: isClean ? null : installation.directory };
  } finally {
    await remove(!isClean);
  }
}

export type KilledLoad = {
  name: string;
  sends: number;
  kills: number;
  /** As fast as two cores manage beside everything else. */
  perSecond: number;
  draw: (name: string) => Send;
};

const clients = 12;
const killPauseMsMin = 600;

export async function startAll({ api, workers }: Installation): Promise<void> {
  for (const server of [api, ...workers]) server.start();
  await Promise.all([api, ...workers].map((server) => server.whenReady()));
}

/** Sends while processes are killed, and resolves when all is accepted and the queue is empty. */
export async function sendWhileKilling(
  installation: Installation,
  { name, sends, kills: killsCount, perSecond, draw }: KilledLoad,
  { seed, random }: { seed: number; random: Random },
): Promise<Pick<MessagesReport, 'kills' | 'ledger' | 'hurry'> & { intervals: readonly Interval[] }> {
  const killPauseMs = Math.max((sends * 1_000) / perSecond / killsCount, killPauseMsMin);
  const pausesMs = [0.4 * killPauseMs, 1.6 * killPauseMs] as const;
  const killsOver = new AbortController();
  const killing = killMany(installation, killsCount, createRandom(seed, 'kills'), pausesMs).finally(() => {
    killsOver.abort();
  });
  const ledger = createLedger();
  const load = { name, sends, clients, draw, perSecond: (sends * 1_000) / (killsCount * killPauseMs) };
  await runLoad(installation, ledger, load, random, killsOver.signal);
  const intervals = await killing;
  return { kills: countKills(intervals), intervals, ledger, hurry: await emptyQueue(installation) };
}
