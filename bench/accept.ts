import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { cpuUs, type ServerProcess, postgresCpuUs, startModule, startServer } from './processes.ts';

/**
 * How many emails of 1 KB to one recipient are accepted (validated, committed, answered with 202), over 1, 16, 64
 * and 256 connections, against single-row durable commits by the same driver on the same server in the same round.
 */
const roundsCount = Number(process.env.BENCH_ROUNDS ?? 3);
const seconds = 4;
/** Connections of the load, and clients of the baseline that it is compared with. */
const comparisons = [
  { connections: 1, baselineClients: 1 },
  { connections: 16, baselineClients: 16 },
  { connections: 64, baselineClients: 16 },
  { connections: 256, baselineClients: 16 },
];

type Measurement = {
  perSecond: number;
  baselinePerSecond: number;
  p50Ms: number;
  p99Ms: number;
  apiUs: number;
  postgresUs: number;
};

export async function benchAccept(): Promise<void> {
  const installation = await createBenchInstallation();
  try {
    const server = await startServer('api', {
      POSTILLION_DATA_DIR: installation.dataDirectory,
      PORT: '0',
      LOG_LEVEL: 'info',
    });
    const measured = comparisons.map(() => [] as Measurement[]);
    await measureOnce(installation, server, { connections: 16, baselineClients: 16 });
    for (let round = 0; round < roundsCount; round += 1) {
      for (const [index, comparison] of comparisons.entries()) {
        measured[index]?.push(await measureOnce(installation, server, comparison));
      }
    }
    report(measured);
    await server.stop();
  } finally {
    await installation.remove();
  }
}

async function measureOnce(
  installation: BenchInstallation,
  server: ServerProcess,
  { connections, baselineClients }: { connections: number; baselineClients: number },
): Promise<Measurement> {
  const baselinePerSecond = await commitSingleRows(installation, baselineClients);
  const apiBeforeUs = cpuUs(server.pid) ?? 0;
  const postgresBeforeUs = postgresCpuUs(installation.dataDirectory);
  const { port } = new URL(server.url);
  const load = startModule('bench/load-process.ts', [
    JSON.stringify({
      port: Number(port),
      request: writeRequestTo('/v1/email/send', installation.key, anEmailBody),
      connections,
      seconds,
    }),
  ]);
  const line = await load.nextLine((candidate) => 'perSecond' in candidate);
  const result = line as { perSecond: number; count: number; statuses: object; p50Ms: number; p99Ms: number };
  const refused = Object.keys(result.statuses).filter((status) => status !== '202');
  if (refused.length > 0) throw new Error(`answers other than 202: ${JSON.stringify(result.statuses)}`);
  return {
    perSecond: result.perSecond,
    baselinePerSecond,
    p50Ms: result.p50Ms,
    p99Ms: result.p99Ms,
    apiUs: ((cpuUs(server.pid) ?? 0) - apiBeforeUs) / result.count,
    postgresUs: (postgresCpuUs(installation.dataDirectory) - postgresBeforeUs) / result.count,
  };
}

export const anEmailBody = {
  from: 'hello@postillion.test',
  from_name: 'Benchmark',
  to: ['somebody@example.com'],
  subject: 'A benchmark',
  html: `<p>${'All work and no play. '.repeat(40)}</p>`,
};

export function writeRequestTo(path: string, key: string, content: object): string {
  const body = JSON.stringify(content);
  return [
    `POST ${path} HTTP/1.1`,
    'host: 127.0.0.1',
    `authorization: Bearer ${key}`,
    'content-type: application/json',
    `content-length: ${Buffer.byteLength(body)}`,
    '',
    body,
  ].join('\r\n');
}

/** Rows of 1 kB, each in a commit of its own; returns how many a second. */
export async function commitSingleRows(
  installation: BenchInstallation,
  clientsCount: number,
): Promise<number> {
  const clients = await Promise.all(
    Array.from({ length: clientsCount }, () => installation.connectPlainly()),
  );
  const body = 'x'.repeat(1_000);
  await clients[0]?.query(
    'create table if not exists baseline (id bigserial primary key, body text not null)',
  );
  let commits = 0;
  const startedAtMs = performance.now();
  const isOver = () => performance.now() - startedAtMs > seconds * 1_000;
  await Promise.all(
    clients.map(async (client) => {
      while (!isOver()) {
        await client.query({
          name: 'baseline',
          text: 'insert into baseline (body) values ($1)',
          values: [body],
        });
        commits += 1;
      }
    }),
  );
  const perSecond = commits / ((performance.now() - startedAtMs) / 1_000);
  await Promise.all(clients.map((client) => client.end()));
  return perSecond;
}

function report(measured: readonly Measurement[][]): void {
  console.log('\naccept: emails accepted and committed, medians of interleaved rounds');
  console.table(
    comparisons.map(({ connections, baselineClients }, index) => {
      const all = measured[index] ?? [];
      const of = (pick: (measurement: Measurement) => number) => median(all.map(pick));
      return {
        connections,
        'per second': Math.round(of(({ perSecond }) => perSecond)),
        [`baseline`]: `${Math.round(of(({ baselinePerSecond }) => baselinePerSecond))} (${baselineClients})`,
        ratio: of(({ perSecond, baselinePerSecond }) => perSecond / baselinePerSecond).toFixed(2),
        'p50 ms': of(({ p50Ms }) => p50Ms).toFixed(1),
        'p99 ms': of(({ p99Ms }) => p99Ms).toFixed(1),
        'API µs': Math.round(of(({ apiUs }) => apiUs)),
        'PostgreSQL µs': Math.round(of(({ postgresUs }) => postgresUs)),
      };
    }),
  );
  console.log('baseline: single-row durable commits a second by the same driver (its clients)');
}
