import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import { systemClock } from '../src/platform/clock.ts';
import { createIds } from '../src/platform/ids.ts';
import { createWebhook, deleteWebhook } from '../src/webhooks/keeping.ts';
import { anEmailBody, writeRequestTo } from './accept.ts';
import { benchWorkerEnvironment, startBenchSink } from './deliver.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { cpuUs, type LineProcess, postgresCpuUs, startModule, startServer } from './processes.ts';
import { whenDelivered } from './transactional.ts';
import { startReceivers, untilTold } from './webhooks.ts';

/**
 * What the log of events costs: processor time of an email from the request to the sink, where nobody wants to hear of it,
 * where a program wants all of it that reads the log, and where an endpoint is told all of it as well. Each round measures
 * all three, in turns that begin with another each time.
 */
const roundsCount = Number(process.env.BENCH_ROUNDS ?? 6);
const mails = Number(process.env.BENCH_MAILS ?? 2_000);
const connections = 16;
const listeners = ['nobody', 'the log', 'the log and an endpoint'] as const;

type Listener = (typeof listeners)[number];
type Cost = { apiUs: number; workerUs: number; postgresUs: number };

export async function benchEventLog(): Promise<void> {
  const installation = await createBenchInstallation();
  try {
    const [sink, receivers] = await Promise.all([startBenchSink(), startReceivers()]);
    const api = await startServer('api', {
      POSTILLION_DATA_DIR: installation.dataDirectory,
      PORT: '0',
      LOG_LEVEL: 'info',
    });
    const worker = await startServer('worker', {
      ...benchWorkerEnvironment(installation, sink.port),
      POSTILLION_WEBHOOK_ALLOW_HOSTS: '127.0.0.1',
    });
    const costs = new Map<Listener, Cost[]>(listeners.map((listener) => [listener, []]));
    // The first is not counted.
    for (let round = -1; round < roundsCount; round += 1) {
      for (const [place] of listeners.entries()) {
        const listener = listeners[(place + round + listeners.length) % listeners.length] ?? 'nobody';
        const stop = await listen(installation, listener, receivers.port);
        const cost = await measure(installation, { api, worker });
        await stop();
        if (round >= 0) costs.get(listener)?.push(cost);
      }
    }
    report(costs);
    await Promise.all([api.stop(), worker.stop()]);
    await Promise.all([sink.stop(), receivers.stop()]);
  } finally {
    await installation.remove();
  }
}

/** The result has the listener listen no more. */
async function listen(
  { database, organizationId, secrets }: BenchInstallation,
  listener: Listener,
  port: number,
): Promise<() => Promise<void>> {
  if (listener === 'nobody') return () => Promise.resolve();
  const tools = {
    database,
    clock: systemClock,
    newId: createIds(systemClock),
    secrets,
    onUntold: () => undefined,
  };
  const { webhook } = await createWebhook(tools, organizationId, {
    events: ['*'],
    ...(listener === 'the log'
      ? { kind: 'poll' }
      : { kind: 'url', url: `http://127.0.0.1:${port}/`, concurrency: 5 }),
  });
  return async () => {
    await deleteWebhook(tools, { organizationId, id: webhook.id });
  };
}

async function measure(
  installation: BenchInstallation,
  { api, worker }: { api: LineProcess & { url: string }; worker: LineProcess },
): Promise<Cost> {
  const { database, dataDirectory, key } = installation;
  // So that none pays for the rows of another.
  await database.rows(unpreparedStatement('vacuum analyze'));
  const used = () => ({
    apiUs: cpuUs(api.pid) ?? 0,
    workerUs: cpuUs(worker.pid) ?? 0,
    postgresUs: postgresCpuUs(dataDirectory),
  });
  const before = used();
  const request = writeRequestTo('/v1/email/send', key, anEmailBody);
  const load = startModule('bench/load-process.ts', [
    JSON.stringify({
      port: Number(new URL(api.url).port),
      request,
      connections,
      requests: mails,
    }),
  ]);
  const { count, statuses } = (await load.nextLine((line) => 'perSecond' in line)) as {
    count: number;
    statuses: Readonly<Record<string, number>>;
  };
  if (statuses['202'] !== count) throw new Error(`answers other than 202: ${JSON.stringify(statuses)}`);
  await whenDelivered(installation);
  await untilTold(installation);
  const after = used();
  return {
    apiUs: (after.apiUs - before.apiUs) / count,
    workerUs: (after.workerUs - before.workerUs) / count,
    postgresUs: (after.postgresUs - before.postgresUs) / count,
  };
}

function report(costs: ReadonlyMap<Listener, readonly Cost[]>): void {
  console.log(
    '\nevent-log: processor time of an email, accepted and delivered, medians of interleaved rounds',
  );
  const sumOf = ({ apiUs, workerUs, postgresUs }: Cost) => apiUs + workerUs + postgresUs;
  const alone = (costs.get('nobody') ?? []).map(sumOf);
  console.table(
    listeners.map((listener) => {
      const measured = costs.get(listener) ?? [];
      const of = (pick: (cost: Cost) => number) => Math.round(median(measured.map(pick)));
      const ratios = measured.map((cost, round) => sumOf(cost) / (alone[round] ?? Number.NaN));
      return {
        'who listens': listener,
        'API µs': of(({ apiUs }) => apiUs),
        'worker µs': of(({ workerUs }) => workerUs),
        'PostgreSQL µs': of(({ postgresUs }) => postgresUs),
        'in all µs': of(sumOf),
        'to nobody, in its round': median(ratios).toFixed(3),
        'from and to': `${Math.min(...ratios).toFixed(3)} to ${Math.max(...ratios).toFixed(3)}`,
      };
    }),
  );
}
