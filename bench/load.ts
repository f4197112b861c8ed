import { type BenchInstallation, createBenchInstallation } from './installation.ts';
import { cpuUs, postgresCpuUs, type ServerProcess, startModule, startServer } from './processes.ts';

/** What came of a load, by what is counted. */
export type Load = { perSecond: number; p50Ms: number; p99Ms: number; apiUs: number; postgresUs: number };

/** Starts an API and compares in interleaved rounds, after a first load that is not counted. */
export async function compareOnApi<Comparison, Measurement>(
  {
    roundsCount,
    warmUp,
    comparisons,
    settings = {},
  }: {
    roundsCount: number;
    warmUp: Comparison;
    comparisons: readonly Comparison[];
    settings?: Record<string, string>;
  },
  measureOnce: (
    installation: BenchInstallation,
    server: ServerProcess,
    comparison: Comparison,
  ) => Promise<Measurement>,
): Promise<Measurement[][]> {
  const installation = await createBenchInstallation();
  try {
    const server = await startServer('api', {
      POSTILLION_DATA_DIR: installation.dataDirectory,
      PORT: '0',
      LOG_LEVEL: 'info',
      ...settings,
    });
    const measured = comparisons.map(() => [] as Measurement[]);
    await measureOnce(installation, server, warmUp);
    for (let round = 0; round < roundsCount; round += 1) {
      for (const [index, comparison] of comparisons.entries()) {
        measured[index]?.push(await measureOnce(installation, server, comparison));
      }
    }
    await server.stop();
    return measured;
  } finally {
    await installation.remove();
  }
}

/** Sends requests for some seconds, all of which must be accepted; each counts as `counted`. */
export async function measureLoad(
  { dataDirectory }: BenchInstallation,
  server: ServerProcess,
  order: ({ request: string | { file: string } } | { smtp: { port: number; key: string } }) & {
    connections: number;
    seconds: number;
    isNumbered?: boolean;
  },
  counted = 1,
): Promise<Load> {
  const apiBeforeUs = cpuUs(server.pid) ?? 0;
  const postgresBeforeUs = postgresCpuUs(dataDirectory);
  const { port } = new URL(server.url);
  const load =
    'smtp' in order
      ? startModule('bench/submission-load-process.ts', [JSON.stringify({ ...order, ...order.smtp })])
      : startModule('bench/load-process.ts', [JSON.stringify({ port: Number(port), ...order })]);
  const line = await load.nextLine((candidate) => 'perSecond' in candidate);
  const result = line as { perSecond: number; count: number; statuses: object; p50Ms: number; p99Ms: number };
  const refused = Object.keys(result.statuses).filter((status) => status !== '202');
  if (refused.length > 0) throw new Error(`answers other than 202: ${JSON.stringify(result.statuses)}`);
  const count = result.count * counted;
  return {
    perSecond: result.perSecond * counted,
    p50Ms: result.p50Ms,
    p99Ms: result.p99Ms,
    apiUs: ((cpuUs(server.pid) ?? 0) - apiBeforeUs) / count,
    postgresUs: (postgresCpuUs(dataDirectory) - postgresBeforeUs) / count,
  };
}
