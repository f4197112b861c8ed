import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { anEmailBody, writeRequestTo } from './accept.ts';
import { type BenchInstallation, median } from './installation.ts';
import { compareOnApi, type Load, measureLoad } from './load.ts';
import type { ServerProcess } from './processes.ts';

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

export async function benchBatch(): Promise<void> {
  const warmUp = { emails: 1, connections: 16 };
  report(await compareOnApi({ roundsCount, warmUp, comparisons }, measureOnce));
}

async function measureOnce(
  installation: BenchInstallation,
  server: ServerProcess,
  { emails, connections }: (typeof comparisons)[number],
): Promise<Load> {
  const request =
    emails === 1
      ? writeRequestTo('/v1/email/send', installation.key, anEmailBody)
      : writeRequestTo('/v1/email/send/batch', installation.key, {
          emails: Array.from({ length: emails }, () => anEmailBody),
        });
  const file = path.join(installation.dataDirectory, 'bench-request');
  await writeFile(file, request);
  return measureLoad(installation, server, { request: { file }, connections, seconds }, emails);
}

function report(measured: readonly Load[][]): void {
  console.log('\nbatch: emails accepted and committed, medians of interleaved rounds');
  console.table(
    comparisons.map(({ emails, connections }, index) => {
      const all = measured[index] ?? [];
      const of = (pick: (load: Load) => number) => median(all.map(pick));
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
