import { type BenchInstallation, median } from './installation.ts';
import { compareOnApi, type Load, measureLoad } from './load.ts';
import type { ServerProcess } from './processes.ts';

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

type Measurement = Load & { baselinePerSecond: number };

export async function benchAccept(): Promise<void> {
  const warmUp = { connections: 16, baselineClients: 16 };
  report(await compareOnApi({ roundsCount, warmUp, comparisons }, measureOnce));
}

async function measureOnce(
  installation: BenchInstallation,
  server: ServerProcess,
  { connections, baselineClients }: (typeof comparisons)[number],
): Promise<Measurement> {
  const baselinePerSecond = await commitSingleRows(installation, baselineClients);
  const request = writeRequestTo('/v1/email/send', installation.key, anEmailBody);
  return {
    ...(await measureLoad(installation, server, { request, connections, seconds })),
    baselinePerSecond,
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
