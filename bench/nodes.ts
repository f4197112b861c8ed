import { setTimeout as sleep } from 'node:timers/promises';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import {
  benchWorkerEnvironment,
  campaign,
  deliver,
  type DeliveryLoad,
  type DeliveryRun,
  reportWork,
  startBenchSink,
  transactional,
} from './deliver.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { startServer } from './processes.ts';

/**
 * One, two and three workers on one PostgreSQL, with the loads of `deliver`, and what the sessions of PostgreSQL wait
 * for meanwhile. The baseline is one worker, in the same round.
 */
const roundsCount = Number(process.env.BENCH_ROUNDS ?? 3);
const workerCounts = [1, 2, 3];
const loads: readonly DeliveryLoad[] = [campaign, transactional];

type NodesRun = DeliveryRun & { waits: ReadonlyMap<string, number> };

export async function benchNodes(): Promise<void> {
  const runs = new Map<string, NodesRun[]>();
  const installation = await createBenchInstallation();
  try {
    const sink = await startBenchSink();
    for (let round = 0; round < roundsCount; round += 1) {
      for (const count of workerCounts) {
        const workers = await Promise.all(
          Array.from({ length: count }, () =>
            startServer('worker', benchWorkerEnvironment(installation, sink.port)),
          ),
        );
        await deliver(installation, workers, { ...campaign, count: 2_000 });
        for (const load of loads) {
          const watch = watchWaits(installation);
          const run = await deliver(installation, workers, load);
          const name = nameOf(load, count);
          runs.set(name, [...(runs.get(name) ?? []), { ...run, waits: await watch.end() }]);
        }
        await Promise.all(workers.map(({ stop }) => stop()));
      }
    }
    report(runs);
    await sink.stop();
  } finally {
    await installation.remove();
  }
}

function nameOf({ measured }: DeliveryLoad, workers: number): string {
  return `${measured}, ${workers} ${workers === 1 ? 'worker' : 'workers'}`;
}

const sampleEveryMs = 10;

/** What sessions at work were seen to wait for, and how often; `processor` where they did not wait. */
function watchWaits({ database }: BenchInstallation): { end: () => Promise<ReadonlyMap<string, number>> } {
  const waits = new Map<string, number>();
  let isOver = false;
  const sampling = (async () => {
    while (!isOver) {
      const seen = await database.rows(
        unpreparedStatement<{ wait: string }>(
          `select coalesce(wait_event, 'processor') as wait
           from pg_stat_activity
           where backend_type = 'client backend' and state = 'active' and pid <> pg_backend_pid()
             -- Workers that wait to be the guardian do so for as long as they live.
             and wait_event is distinct from 'advisory'`,
        ),
      );
      for (const { wait } of seen) waits.set(wait, (waits.get(wait) ?? 0) + 1);
      await sleep(sampleEveryMs);
    }
  })();
  return {
    end: async () => {
      isOver = true;
      await sampling;
      return waits;
    },
  };
}

function report(runs: ReadonlyMap<string, readonly NodesRun[]>): void {
  const rateOf = (name: string) => median((runs.get(name) ?? []).map(({ perSecond }) => perSecond));
  console.log('\nnodes: from the queue to an SMTP sink by several workers, medians of interleaved rounds');
  console.table(
    loads.flatMap((load) =>
      workerCounts.map((count) => {
        const name = nameOf(load, count);
        const all = runs.get(name) ?? [];
        return {
          name,
          'per second': Math.round(rateOf(name)),
          'to one worker': (rateOf(name) / rateOf(nameOf(load, 1))).toFixed(2),
          'worker µs': Math.round(median(all.map(({ workerUs }) => workerUs ?? Number.NaN))),
          'PostgreSQL µs': Math.round(median(all.map(({ postgresUs }) => postgresUs ?? Number.NaN))),
          ...reportWork(all),
          'sessions wait for': listWaits(all),
        };
      }),
    ),
  );
}

const waitsShown = 3;

function listWaits(runs: readonly NodesRun[]): string {
  const sums = new Map<string, number>();
  for (const { waits } of runs)
    for (const [wait, count] of waits) sums.set(wait, (sums.get(wait) ?? 0) + count);
  const all = [...sums.values()].reduce((sum, count) => sum + count, 0);
  return [...sums]
    .toSorted(([, one], [, other]) => other - one)
    .slice(0, waitsShown)
    .map(([wait, count]) => `${wait} ${Math.round((100 * count) / all)} %`)
    .join(', ');
}
