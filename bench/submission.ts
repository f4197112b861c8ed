import { createServer } from 'node:net';
import { anEmailBody, writeRequestTo } from './accept.ts';
import { type BenchInstallation, median } from './installation.ts';
import { compareOnApi, type Load, measureLoad } from './load.ts';
import type { ServerProcess } from './processes.ts';

/** How many emails of 1 KB to one recipient are accepted by SMTP, against requests with the same in the same round. */
const roundsCount = Number(process.env.BENCH_ROUNDS ?? 3);
const seconds = 4;
const connections = 16;
const comparisons = ['request', 'smtp'] as const;

export async function benchSubmission(): Promise<void> {
  const port = await findFreePort();
  const measure = (
    installation: BenchInstallation,
    server: ServerProcess,
    by: (typeof comparisons)[number],
  ): Promise<Load> =>
    by === 'request'
      ? measureLoad(installation, server, {
          request: writeRequestTo('/v1/email/send', installation.key, anEmailBody),
          connections,
          seconds,
        })
      : measureLoad(installation, server, { smtp: { port, key: installation.key }, connections, seconds });
  const settings = { POSTILLION_SUBMISSION_PORT: String(port) };
  report(await compareOnApi({ roundsCount, warmUp: 'smtp', comparisons, settings }, measure));
}

async function findFreePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  if (typeof address !== 'object' || address === null) throw new Error('a server has a port');
  return address.port;
}

function report(measured: readonly Load[][]): void {
  console.log(`\nsubmission: emails accepted over ${connections} connections, medians of interleaved rounds`);
  console.table(
    comparisons.map((by, index) => {
      const all = measured[index] ?? [];
      const of = (pick: (load: Load) => number) => median(all.map(pick));
      const ratios = all.map(({ perSecond }, round) => perSecond / (measured[0]?.[round]?.perSecond ?? NaN));
      return {
        by,
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
