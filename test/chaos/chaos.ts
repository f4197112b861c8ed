import { isDeepStrictEqual, parseArgs } from 'node:util';
import { runCampaign } from './campaign.ts';
import { type ChaosReport, type Fault, faults, runChaos, usualFaults } from './run.ts';
import { runChatApp } from './chatapp.ts';
import type { MessagesReport } from './messages.ts';
import { runNeighbour } from './neighbour.ts';
import { runPush } from './push.ts';
import { runSms } from './sms.ts';
import { runWebhooks } from './webhooks.ts';

/**
 * `npm run chaos -- [--seed N] [--sends 10000] [--kills 200] [--faults api,worker,postgres,all,zombie,stopped,cut,bodies,disk,crash-points]
 *   [--outage-seconds 180]`,
 * `npm run chaos -- --campaign 50000 [--seed N] [--kills 20]`,
 * `npm run chaos -- --sms 10000 [--seed N] [--kills 20]`, and in the same way `--push 10000` or `--chatapp 4000`,
 * `npm run chaos -- --webhooks [--seed N] [--sends 10000] [--kills 20]`,
 * `npm run chaos -- --neighbour 60`, of which each of two parts takes so many seconds
 *
 * Kills the processes of an installation of its own under load, and compares the responses to clients, the database and
 * what a sink received. Exits with 1 if anything is lost, unexplained or too slow.
 */
const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: `${Date.now() % 1_000_000}` },
    sends: { type: 'string', default: '10000' },
    kills: { type: 'string' },
    campaign: { type: 'string' },
    sms: { type: 'string' },
    push: { type: 'string' },
    chatapp: { type: 'string' },
    neighbour: { type: 'string' },
    webhooks: { type: 'boolean', default: false },
    faults: { type: 'string', default: usualFaults.join(',') },
    'outage-seconds': { type: 'string' },
  },
});
const plan = {
  seed: readCount('seed', values.seed),
  sends: readCount('sends', values.sends),
  kills: readCount(
    'kills',
    values.kills ??
      (values.webhooks || (values.campaign ?? values.sms ?? values.push ?? values.chatapp) !== undefined
        ? '20'
        : '200'),
  ),
  faults: values.faults.split(',').map(readFault),
  outageMs:
    values['outage-seconds'] === undefined
      ? null
      : readCount('outage-seconds', values['outage-seconds']) * 1_000,
};
console.log(`seed ${plan.seed}`);

const startedAtMs = performance.now();
const onStart = (abandon: () => Promise<void>) => {
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => {
      void abandon().finally(() => process.exit(1));
    });
  }
};
if (values.sms !== undefined) {
  process.exitCode = printMessages(await runSms({ ...plan, texts: readCount('sms', values.sms) }, onStart));
} else if (values.push !== undefined) {
  process.exitCode = printMessages(
    await runPush({ ...plan, notifications: readCount('push', values.push) }, onStart),
  );
} else if (values.chatapp !== undefined) {
  process.exitCode = printMessages(
    await runChatApp({ ...plan, messages: readCount('chatapp', values.chatapp) }, onStart),
  );
} else if (values.webhooks) {
  process.exitCode = printMessages(await runWebhooks({ ...plan, emails: plan.sends }, onStart));
} else if (values.neighbour !== undefined) {
  const { violations, slow, deeds, neighbour, evidence, ...figures } = await runNeighbour(
    { seconds: readCount('neighbour', values.neighbour) },
    onStart,
  );
  console.table(figures);
  console.table(neighbour);
  console.table(
    deeds.map(({ deed, alone, beside }) => ({
      deed,
      times: beside.count,
      'median alone': alone.medianMs,
      'median beside': beside.medianMs,
      'p99 alone': alone.p99Ms,
      'p99 beside': beside.p99Ms,
    })),
  );
  process.exitCode = conclude([...violations, ...slow], evidence);
} else if (values.campaign === undefined) {
  const report = await runChaos(plan, {
    onStage: (sentence) => {
      console.log(`${elapsed()}  ${sentence}`);
    },
    onStart,
  });
  process.exitCode = print(report);
} else {
  const contacts = readCount('campaign', values.campaign);
  const { violations, evidence, kills, ...figures } = await runCampaign({ ...plan, contacts }, onStart);
  console.table({
    ...figures,
    ...namedKills(kills),
  });
  process.exitCode = conclude(violations, evidence);
}

/** Returns the exit code. */
function printMessages(report: MessagesReport): number {
  const { violations, evidence, kills, counts, ledger, hurry, ...figures } = report;
  console.table({
    ...namedKills(kills),
    ...counts,
    lost: figures.lost,
    repeats: figures.repeats,
    'connections to the API broken': ledger.connectionsBroken,
    ...Object.fromEntries([...ledger.answers].map(([answer, count]) => [`answers ${answer}`, count])),
    'retries not waited for': hurry.hurried,
    'jobs set aside, and replayed': hurry.replayed,
    seconds: figures.seconds,
  });
  return conclude(violations, evidence);
}

function namedKills(kills: Readonly<Record<string, number>>): Record<string, number> {
  return Object.fromEntries(Object.entries(kills).map(([who, count]) => [`kills of ${who}`, count]));
}

function readCount(name: string, text: string): number {
  if (!/^\d{1,9}$/.test(text)) return refuse(`--${name} must be a number`);
  return Number(text);
}

function readFault(text: string): Fault {
  return faults.find((fault) => fault === text) ?? refuse(`--faults are among ${faults.join(', ')}`);
}

function refuse(sentence: string): never {
  console.error(sentence);
  process.exit(1);
}

function elapsed(): string {
  return `${((performance.now() - startedAtMs) / 1_000).toFixed(1).padStart(7)} s`;
}

/** Returns the exit code. */
function print(report: ChaosReport): number {
  const { findings, ledger, kills, outages, recoveries, crashPoints, hurry, evidence } = report;
  const killed = (victim: string) => kills.filter((kill) => kill.victim === victim).length;
  console.table({
    'kills of the API': killed('api'),
    'kills of workers': killed('worker'),
    'kills of PostgreSQL': killed('postgres'),
    'workers that lost their lease and lived on': killed('zombie'),
    accepted: findings.accepted,
    recipients: findings.recipients,
    'deliveries at the sink': findings.deliveries,
    lost: findings.lost,
    'explained duplicates': findings.explainedDuplicates,
    'unexplained duplicates': findings.unexplainedDuplicates,
    'connections broken': ledger.connectionsBroken,
    ...Object.fromEntries([...ledger.answers].map(([answer, count]) => [`answers ${answer}`, count])),
    'retries not waited for': hurry.hurried,
    'jobs set aside, and replayed': hurry.replayed,
  });
  if (outages.length > 0) {
    console.table(
      outages.map(({ fault, what, beganAtMs, endedAtMs, unfinished }) => ({
        outage: fault,
        of: what,
        seconds: Math.round((endedAtMs - beganAtMs) / 1_000),
        'unfinished requests': [...unfinished].map(([answer, count]) => `${count}: ${answer}`).join(', '),
      })),
    );
  }
  if (crashPoints.length > 0) {
    console.table(
      crashPoints.map(({ name, expected, found }) => ({
        'killed …': name,
        deliveries: found.deliveries,
        ambiguities: found.ambiguities,
        'is as expected': isDeepStrictEqual(found, expected),
      })),
    );
  }
  const rows = recoveries.filter(({ afterMs }) => afterMs.length > 0);
  if (rows.length > 0) {
    console.table(
      rows.map(({ name, limitMs, afterMs }) => ({
        recovery: name,
        times: afterMs.length,
        'median ms': [...afterMs].sort((first, second) => first - second)[Math.floor(afterMs.length / 2)],
        'longest ms': Math.max(...afterMs),
        'limit ms': limitMs,
      })),
    );
  }
  const violations = [
    ...findings.violations,
    ...rows
      .filter(({ limitMs, afterMs }) => Math.max(...afterMs) > limitMs)
      .map(({ name, limitMs, afterMs }) => `${name}: ${Math.max(...afterMs)} ms, and not ${limitMs}`),
  ];
  return conclude(violations, evidence);
}

/** Returns the exit code. */
function conclude(violations: readonly string[], evidence: string | null): number {
  for (const violation of violations) console.log(`VIOLATION  ${violation}`);
  if (evidence !== null) console.log(`The logs are in ${evidence}`);
  console.log(violations.length === 0 ? 'Nothing lost, nothing unexplained.' : `seed ${plan.seed}`);
  return violations.length === 0 ? 0 : 1;
}
