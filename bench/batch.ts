import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { anEmailBody, writeRequestTo } from './accept.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { cpuUs, postgresCpuUs, type ServerProcess, startModule, startServer } from './processes.ts';

/**
 * How many emails of 1 KB to one recipient are accepted in batches, of ten, a hundred and 500, against single requests
 * over 64 connections in the same round.
 */
const roundsCount = Number(process.env.BENCH_ROUNDS ?? 3);
const seconds = 4;
const comparisons = [
  { emails: 1, connections: 64 },
  { emails: 10, connections: 16 },
  { emails: 100, connections: 4 },
  { emails: 500, connections: 4 },
];

type Measurement = { perSecond: number; p50Ms: number; p99Ms: number; apiUs: number; postgresUs: number };

export async function benchBatch(): Promise<void> {
  const installation = await createBenchInstallation();
  try {
    const server = await startServer('api', {
      POSTILLION_DATA_DIR: installation.dataDirectory,
      PORT: '0',
      LOG_LEVEL: 'info',
    });
    const measured = comparisons.map(() => [] as Measurement[]);
    await measureOnce(installation, server, { emails: 1, connections: 16 });
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
  { emails, connections }: { emails: number; connections: number },
): Promise<Measurement> {
  const [apiBeforeUs, postgresBeforeUs] = [cpuUs(server.pid) ?? 0, postgresCpuUs(installation.dataDirectory)];
  const request =
    emails === 1
      ? writeRequestTo('/v1/email/send', installation.key, anEmailBody)
      : writeRequestTo('/v1/email/send/batch', installation.key, {
          emails: Array.from({ length: emails }, () => anEmailBody),
        });
  const file = path.join(installation.dataDirectory, 'bench-request');
  await writeFile(file, request);
  const { port } = new URL(server.url);
  const load = startModule('bench/load-process.ts', [
    JSON.stringify({ port: Number(port), request: { file }, connections, seconds }),
  ]);
  const line = await load.nextLine((candidate) => 'perSecond' in candidate);
  const result = line as { perSecond: number; count: number; statuses: object; p50Ms: number; p99Ms: number };
  const refused = Object.keys(result.statuses).filter((status) => status !== '202');
  if (refused.length > 0) throw new Error(`answers other than 202: ${JSON.stringify(result.statuses)}`);
  const count = result.count * emails;
  return {
    perSecond: result.perSecond * emails,
    p50Ms: result.p50Ms,
    p99Ms: result.p99Ms,
    apiUs: ((cpuUs(server.pid) ?? 0) - apiBeforeUs) / count,
    postgresUs: (postgresCpuUs(installation.dataDirectory) - postgresBeforeUs) / count,
  };
}

function report(measured: readonly Measurement[][]): void {
  console.log('\nbatch: emails accepted and committed, medians of interleaved rounds');
  console.table(
    comparisons.map(({ emails, connections }, index) => {
      const all = measured[index] ?? [];
      const of = (pick: (measurement: Measurement) => number) => median(all.map(pick));
      const ratios = all.map(({ perSecond }, round) => perSecond / (measured[0]?.[round]?.perSecond ?? NaN));
      return {
        'emails a request': emails,
        connections,
        'emails a second': Math.round(of(({ perSecond }) => perSecond)),
        ratio: median(ratios).toFixed(2),
        'p50 ms': of(({ p50Ms }) => p50Ms).toFixed(1),
        'p99 ms': of(({ p99Ms }) => p99Ms).toFixed(1),
        'API µs': Math.round(of(({ apiUs }) => apiUs)),
        'PostgreSQL µs': Math.round(of(({ postgresUs }) => postgresUs)),
      };
    }),
  );
}
