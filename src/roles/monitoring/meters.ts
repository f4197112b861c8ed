import {
  collectDefaultMetrics,
  Counter,
  Gauge,
  Histogram,
  type MetricObjectWithValues,
  type MetricValue,
  Registry,
} from 'prom-client';
import { readVersion } from '../../config.ts';
import { createControlLookup } from '../../email/email.ts';
import type { Installation, Observers } from '../../installation/installation.ts';
import { type Settlement, settledOutcomeOf } from '../../messages/messages.ts';
import { groupBy } from '../../platform/grouping.ts';
import type { Database } from '../../platform/postgres/database.ts';
import { countedMax, type Measures } from './condition.ts';

/** A metric with its values at one moment, which can be sent to another process. */
export type Measured = MetricObjectWithValues<MetricValue<string>>;

/**
 * The metrics of one process. No label can have more values than there are channels, providers, outcomes, routes or
 * statuses: never an id, an address or a path as it was asked for.
 */
export type Meters = {
  observers: Observers;
  measure: () => Promise<Measured[]>;
};

/** Of what a provider takes: most in tens of milliseconds, a slow mail server minutes. */
const attemptBuckets = [0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300];
const requestBuckets = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10];

/** `process` is the number of this one among those of its role. */
export function createMeters(
  {
    database,
    ...tools
  }: Pick<Installation, 'config' | 'resolver' | 'clock'> & { database: Pick<Database, 'connections'> },
  { role, process }: { role: string; process: number },
): Meters {
  const registry = new Registry();
  const registers = [registry];
  registry.setDefaultLabels({ process: `${process}` });
  collectDefaultMetrics({ register: registry });

  const info = new Gauge({
    name: 'postillion_info',
    help: 'Always 1: the release and the role of the process.',
    labelNames: ['version', 'role'],
    registers,
  });
  info.set({ version: readVersion(), role }, 1);

  const counter = <Label extends string>(name: string, help: string, labelNames: readonly Label[]) =>
    new Counter({ name, help, labelNames, registers });
  const messagesAccepted = counter(
    'postillion_messages_accepted_total',
    'Transactional messages that were accepted and stored.',
    ['channel'],
  );
  const recipientsAccepted = counter(
    'postillion_recipients_accepted_total',
    'Recipients of the transactional messages that were accepted.',
    ['channel'],
  );
  const handOffs = counter(
    'postillion_hand_offs_total',
    'Hand-offs that were announced, so that the message has left or may have left.',
    ['channel', 'provider'],
  );
  const attempts = counter(
    'postillion_attempts_total',
    'Attempts to hand a message to its provider, by how they ended.',
    ['channel', 'provider', 'outcome'],
  );
  const attemptSeconds = new Histogram({
    name: 'postillion_attempt_duration_seconds',
    help: 'How long attempts took.',
    labelNames: ['channel', 'provider'],
    buckets: attemptBuckets,
    registers,
  });
  const outcomes = counter('postillion_outcomes_total', 'Outcomes of jobs that were written.', [
    'channel',
    'class',
    'outcome',
  ]);
  const ambiguities = counter(
    'postillion_ambiguities_total',
    'Hand-offs that were cut off, so that nobody knows whether the message was taken.',
    ['channel'],
  );
  const drops = counter('postillion_drops_total', 'Recipients to whom nothing is sent, by the reason.', [
    'channel',
    'reason',
  ]);
  const requests = counter(
    'postillion_http_requests_total',
    'Requests by the pattern of their route and the status of the answer; left if the client left before it.',
    ['method', 'route', 'status'],
  );
  const requestSeconds = new Histogram({
    name: 'postillion_http_request_duration_seconds',
    help: 'How long requests took, from their head to the end of the answer.',
    labelNames: ['method', 'route'],
    buckets: requestBuckets,
    registers,
  });
  const logged = counter(
    'postillion_request_log_total',
    'Requests of organizations for their log: written, left out by its rates, or lost since the database did not take them.',
    ['outcome'],
  );
  const connections = new Gauge({
    name: 'postillion_database_connections',
    help: 'Connections of the pool that are used, idle, or may still be opened.',
    labelNames: ['state'],
    registers,
    collect() {
      const { used, idle, max } = database.connections();
      this.set({ state: 'used' }, used);
      this.set({ state: 'idle' }, idle);
      this.set({ state: 'unopened' }, Math.max(0, max - used - idle));
    },
  });
  const connectionWaits = new Gauge({
    name: 'postillion_database_waiting',
    help: 'Callers that wait for a connection of the pool.',
    registers,
    collect() {
      this.set(database.connections().waiting);
    },
  });
  const control = createControlLookup(tools);
  const unchecked = new Gauge({
    name: 'postillion_recipients_unchecked',
    help: "Whether the name servers of this process deny large mail domains, so that recipients' domains are not checked.",
    registers,
    async collect() {
      this.set(tools.config.areDomainsLookedUp && (await control.verdict()) === 'deny' ? 1 : 0);
    },
  });
  void [connections, connectionWaits, unchecked];

  return {
    observers: {
      onAccepted: ({ channel, messages, recipients }) => {
        messagesAccepted.inc({ channel }, messages);
        recipientsAccepted.inc({ channel }, recipients);
      },
      onAnswered: ({ method, route, status, durationMs }) => {
        // What reaches no route may have any method.
        const labels = { method: route === 'none' ? 'any' : method, route };
        requests.inc({ ...labels, status: status === null ? 'left' : `${status}` });
        requestSeconds.observe(labels, durationMs / 1_000);
      },
      onLogged: (counts) => {
        for (const [outcome, count] of Object.entries(counts)) logged.inc({ outcome }, count);
      },
      delivery: {
        onHandedOff: ({ channel, provider }) => {
          handOffs.inc({ channel, provider });
        },
        onAttempted: ({ channel, provider, outcome, durationMs }) => {
          attempts.inc({ channel, provider, outcome });
          attemptSeconds.observe({ channel, provider }, durationMs / 1_000);
        },
        onSettled: (settlements) => {
          // Most of a batch are alike, and to find a metric takes longer than to find a key.
          const alike = groupBy(
            settlements,
            (settlement) =>
              `${settlement.job.channel.name} ${classOf(settlement)} ${settledOutcomeOf(settlement)}`,
          );
          for (const [key, some] of alike) {
            const [channel = '', ofClass = '', outcome = ''] = key.split(' ');
            outcomes.inc({ channel, class: ofClass, outcome }, some.length);
            const cutOff = some.filter(({ isAmbiguous }) => isAmbiguous).length;
            if (cutOff > 0) ambiguities.inc({ channel }, cutOff);
            if (outcome !== 'dropped') continue;
            for (const [reason, dropped] of groupBy(some, ({ dropReason }) => dropReason ?? ''))
              drops.inc({ channel, reason }, dropped.length);
          }
        },
      },
    },
    measure: () => registry.getMetricsAsJSON(),
  };
}

function classOf({ job }: Settlement): string {
  return job.isCampaign ? 'campaign' : 'transactional';
}

/** What the database says of the whole installation; null where it could not be asked. All nodes say the same. */
export function measureInstallation(measures: Measures | null): Promise<Measured[]> {
  const registry = new Registry();
  const gauge = <Label extends string>(name: string, help: string, labelNames: readonly Label[]) =>
    new Gauge({ name, help, labelNames, registers: [registry] });
  const counted = `At most ${countedMax} of each are counted.`;

  gauge('postillion_database_up', 'Whether the database answered in time when it was last asked.', []).set(
    measures === null ? 0 : 1,
  );
  // Without an answer the others are absent, and not what they were.
  if (measures === null) return registry.getMetricsAsJSON();

  const { at } = measures;
  const ageOf = (since: Date) => Math.max(0, at.getTime() - since.getTime()) / 1_000;
  gauge('postillion_workers_alive', 'Workers that hold their lease.', []).set(measures.livingWorkers);

  const waiting = gauge(
    'postillion_jobs_waiting',
    `Recipients in the queue that no worker has claimed, due or not. ${counted}`,
    ['channel', 'lane'],
  );
  const due = gauge('postillion_jobs_due', `Those of them that are due. ${counted}`, ['channel', 'lane']);
  const oldest = gauge(
    'postillion_oldest_due_job_age_seconds',
    'For how long the first job that no worker has claimed has been due; 0 if none is. Campaign recipients that were never tried are left out.',
    ['channel', 'lane'],
  );
  for (const { channel, lane, ...jobs } of measures.waiting) {
    waiting.set({ channel, lane }, jobs.waiting);
    due.set({ channel, lane }, jobs.due);
    oldest.set({ channel, lane }, 0);
  }
  for (const { channel, lane, dueAt } of measures.oldestDue) oldest.set({ channel, lane }, ageOf(dueAt));

  const unavailable = gauge(
    'postillion_provider_unavailable',
    'A worker has found that the provider is not available, and pauses delivery; absent if none has.',
    ['channel', 'provider'],
  );
  const unavailableAccounts = gauge(
    'postillion_accounts_unavailable',
    'Accounts at the provider that a worker cannot use; absent if none is.',
    ['channel', 'provider'],
  );
  for (const { channel, provider, accounts } of measures.openBreakers) {
    if (accounts === null) unavailable.set({ channel, provider }, 1);
    else unavailableAccounts.set({ channel, provider }, accounts);
  }

  const setAside = gauge('postillion_jobs_set_aside', `Jobs that wait for an operator. ${counted}`, [
    'channel',
  ]);
  for (const { channel } of measures.waiting) setAside.set({ channel }, 0);
  for (const [channel, jobs] of measures.setAside) setAside.set({ channel }, jobs);

  const campaigns = gauge(
    'postillion_campaigns',
    `Campaigns that wait for their time, or are under way. ${counted}`,
    ['status'],
  );
  for (const status of ['scheduled', 'queued', 'sending', 'paused'] as const) campaigns.set({ status }, 0);
  for (const each of measures.campaigns) campaigns.set({ status: each.status }, each.campaigns);

  gauge(
    'postillion_segments_lag_seconds',
    'For how long the oldest change of a contact has waited for segments to follow it, or a segment to be computed.',
    [],
  ).set(measures.laggingSince === null ? 0 : ageOf(measures.laggingSince));

  const isSafe = gauge(
    'postillion_postgres_setting_is_safe',
    'Whether the setting of PostgreSQL lets a commit survive a crash.',
    ['setting'],
  );
  for (const { setting, isSafe: is } of measures.durability) isSafe.set({ setting }, is ? 1 : 0);
  return registry.getMetricsAsJSON();
}

/** One text of what several processes measured: each metric once, with the values of all. */
export async function composeMetrics(parts: readonly (readonly Measured[])[]): Promise<string> {
  const byName = new Map<string, Measured>();
  for (const measured of parts.flat()) {
    const known = byName.get(measured.name);
    byName.set(
      measured.name,
      known === undefined ? measured : { ...known, values: [...known.values, ...measured.values] },
    );
  }
  const registry = new Registry();
  for (const metric of byName.values()) {
    // What the registry asks of a metric is its name, and what it is now.
    registry.registerMetric({ name: metric.name, get: () => Promise.resolve(metric) } as never);
  }
  return registry.metrics();
}

export const metricsContentType = Registry.PROMETHEUS_CONTENT_TYPE;

/** Which of the processes of a supervisor answer, in the order of their numbers. */
export function measureProcesses(answers: readonly boolean[]): Promise<Measured[]> {
  const registry = new Registry();
  const up = new Gauge({
    name: 'postillion_process_up',
    help: 'Whether the process answers its supervisor; only where a role runs in several.',
    labelNames: ['process'],
    registers: [registry],
  });
  for (const [index, isUp] of answers.entries()) up.set({ process: `${index + 1}` }, isUp ? 1 : 0);
  return registry.getMetricsAsJSON();
}
