import { setTimeout as sleep } from 'node:timers/promises';
import { createTemplate } from '../src/templates/templates.ts';
import { systemClock } from '../src/platform/clock.ts';
import { createIds } from '../src/platform/ids.ts';
import { statement, unpreparedStatement } from '../src/platform/postgres/database.ts';
import { benchWorkerEnvironment, startBenchSink } from './deliver.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { cpuUs, type LineProcess, postgresCpuUs, startModule, startServer } from './processes.ts';

/**
 * Transactional mail of a saved template, from the request to the sink: how many a second are accepted over 1, 16 and
 * 64 connections while a worker delivers them, and what one costs. Before that, what PostgreSQL itself counts of mails
 * that come one at a time: statements, transactions that write, and flushes of the log, for the acceptance alone and for the whole way.
 */
const roundsCount = Number(process.env.BENCH_ROUNDS ?? 3);
const seconds = 4;
const comparisons = [1, 16, 64];
/** One after the other, so that each has its transactions to itself. */
const loneMails = 100;
const lonePauseMs = 40;
/** Sessions that have nothing to do tell their counts after ten seconds. */
const countsLingerMs = 11_000;

type Measurement = {
  acceptedPerSecond: number;
  deliveredPerSecond: number;
  p50Ms: number;
  p99Ms: number;
  apiUs: number;
  workerUs: number;
  postgresUs: number;
};

export async function benchTransactional(): Promise<void> {
  const installation = await createBenchInstallation({
    settings: { shared_preload_libraries: 'pg_stat_statements', 'pg_stat_statements.track': 'top' },
  });
  try {
    await installation.database.rows(unpreparedStatement('create extension pg_stat_statements'));
    const { key } = installation;
    const request = writeTemplateRequest(key, await saveTemplate(installation));
    const sink = await startBenchSink();
    const api = await startServer('api', {
      POSTILLION_DATA_DIR: installation.dataDirectory,
      PORT: '0',
      LOG_LEVEL: 'info',
    });
    const send = async (order: {
      connections: number;
      seconds?: number;
      requests?: number;
      pauseMs?: number;
    }) => {
      const { port } = new URL(api.url);
      const load = startModule('bench/load-process.ts', [
        JSON.stringify({ port: Number(port), request, ...order }),
      ]);
      return (await load.nextLine((line) => 'perSecond' in line)) as LoadResult;
    };
    const sendLoneMails = () => send({ connections: 1, requests: loneMails, pauseMs: lonePauseMs });
    await sendLoneMails();
    const accepted = await countFor(installation, sendLoneMails);
    const worker = await startServer('worker', benchWorkerEnvironment(installation, sink.port));
    await whenDelivered(installation);
    await sendLoneMails();
    await installation.database.rows(unpreparedStatement('select pg_stat_statements_reset()'));
    const whole = await countFor(installation, sendLoneMails);
    reportCounts(accepted, whole);
    await reportStatements(installation);

    const measured = comparisons.map(() => [] as Measurement[]);
    await send({ connections: 16, seconds });
    await whenDelivered(installation);
    for (let round = 0; round < roundsCount; round += 1) {
      for (const [index, connections] of comparisons.entries()) {
        measured[index]?.push(
          await measure(installation, { api, worker }, () => send({ connections, seconds })),
        );
      }
    }
    report(measured);
    await Promise.all([api.stop(), worker.stop()]);
    await sink.stop();
  } finally {
    await installation.remove();
  }
}

type LoadResult = {
  perSecond: number;
  count: number;
  statuses: Readonly<Record<string, number>>;
  p50Ms: number;
  p99Ms: number;
};

async function measure(
  installation: BenchInstallation,
  { api, worker }: { api: LineProcess; worker: LineProcess },
  load: () => Promise<LoadResult>,
): Promise<Measurement> {
  const used = () => ({
    apiUs: cpuUs(api.pid) ?? 0,
    workerUs: cpuUs(worker.pid) ?? 0,
    postgresUs: postgresCpuUs(installation.dataDirectory),
  });
  const before = used();
  const startedAtMs = performance.now();
  const result = await load();
  const refused = Object.keys(result.statuses).filter((status) => status !== '202');
  if (refused.length > 0) throw new Error(`answers other than 202: ${JSON.stringify(result.statuses)}`);
  await whenDelivered(installation);
  const elapsedSeconds = (performance.now() - startedAtMs) / 1_000;
  const after = used();
  return {
    acceptedPerSecond: result.perSecond,
    deliveredPerSecond: result.count / elapsedSeconds,
    p50Ms: result.p50Ms,
    p99Ms: result.p99Ms,
    apiUs: (after.apiUs - before.apiUs) / result.count,
    workerUs: (after.workerUs - before.workerUs) / result.count,
    postgresUs: (after.postgresUs - before.postgresUs) / result.count,
  };
}

const queueRest = statement(
  'bench_queue_rest',
  'select from delivery_queue order by organization_id, message_id, ordinal limit 1',
);

export async function whenDelivered({ database }: BenchInstallation): Promise<void> {
  while ((await database.rows(queueRest)).length > 0) await sleep(20);
}

/** What PostgreSQL has counted since it was started, without the benchmark's own. */
type Counts = { statements: number; writes: number; flushes: number; walBytes: number };

const selectCounts = unpreparedStatement<Counts>(
  `select
     (select coalesce(sum(calls), 0) from pg_stat_statements where query not like '%bench_%') as statements,
     pg_snapshot_xmax(pg_current_snapshot())::text::bigint as writes,
     (select coalesce(sum(fsyncs), 0) from pg_stat_io where object = 'wal') as flushes,
     (select wal_bytes from pg_stat_wal) as "walBytes"`,
);

/** What one mail adds to the counts, of as many as `run` sends; what they grow by meanwhile without any is taken off. */
async function countFor(installation: BenchInstallation, run: () => Promise<LoadResult>): Promise<Counts> {
  const countDuring = async (work: () => Promise<unknown>) => {
    const client = await installation.connectPlainly();
    try {
      const read = async () => (await client.query<Record<keyof Counts, string>>(selectCounts.text)).rows[0];
      await sleep(countsLingerMs);
      const before = await read();
      await work();
      await sleep(countsLingerMs);
      const after = await read();
      const grownBy = (name: keyof Counts) => Number(after?.[name]) - Number(before?.[name]);
      return {
        statements: grownBy('statements'),
        writes: grownBy('writes'),
        flushes: grownBy('flushes'),
        walBytes: grownBy('walBytes'),
      };
    } finally {
      await client.end();
    }
  };
  const startedAtMs = performance.now();
  let count = 0;
  const withMails = await countDuring(async () => {
    ({ count } = await run());
  });
  const lengthMs = performance.now() - startedAtMs - 2 * countsLingerMs;
  const without = await countDuring(() => sleep(lengthMs));
  const perMail = (name: keyof Counts) => (withMails[name] - without[name]) / count;
  return {
    statements: perMail('statements'),
    writes: perMail('writes'),
    flushes: perMail('flushes'),
    walBytes: perMail('walBytes'),
  };
}

async function saveTemplate({ database, organizationId }: BenchInstallation): Promise<string> {
  const tools = { database, clock: systemClock, newId: createIds(systemClock) };
  const saved = await createTemplate(tools, organizationId, {
    name: 'Benchmark',
    subject: 'An order of {{name}}',
    html: `<html><body><p>Dear {{name}},</p>${'<p>All work and <b>no play</b>. </p>'.repeat(120)}<p>{{city}}</p></body></html>`,
  });
  if (saved.kind !== 'saved') throw new Error('the template was not saved');
  return saved.template.id;
}

function writeTemplateRequest(key: string, templateId: string): string {
  const body = JSON.stringify({
    from: 'hello@postillion.test',
    from_name: 'Benchmark',
    to: ['somebody@example.com'],
    template_id: templateId,
    variables: { name: 'Somebody', city: 'Somewhere' },
  });
  return [
    'POST /v1/email/send HTTP/1.1',
    'host: 127.0.0.1',
    `authorization: Bearer ${key}`,
    'content-type: application/json',
    `content-length: ${Buffer.byteLength(body)}`,
    '',
    body,
  ].join('\r\n');
}

function reportCounts(accepted: Counts, whole: Counts): void {
  const show = (half: string, { statements, writes, flushes, walBytes }: Counts) => ({
    half,
    statements: statements.toFixed(1),
    'transactions that write': writes.toFixed(1),
    flushes: flushes.toFixed(1),
    'WAL octets': Math.round(walBytes),
  });
  console.log('\ntransactional: what PostgreSQL counts for one mail, with nothing else under way');
  console.table([
    show('acceptance', accepted),
    show('delivery', {
      statements: whole.statements - accepted.statements,
      writes: whole.writes - accepted.writes,
      flushes: whole.flushes - accepted.flushes,
      walBytes: whole.walBytes - accepted.walBytes,
    }),
    show('together', whole),
  ]);
}

/** With those of the background, such as looks for due work. */
async function reportStatements({ database }: BenchInstallation): Promise<void> {
  console.log(`\nthe statements that were run most, while ${loneMails} mails came and as long without any`);
  console.table(
    await database.rows(
      unpreparedStatement(
        `select calls, round(total_exec_time::numeric * 1000 / calls) as "µs",
           left(regexp_replace(query, '\\s+', ' ', 'g'), 100) as statement
         from pg_stat_statements
         where query not like '%bench_%'
         order by calls desc
         limit 30`,
      ),
    ),
  );
}

function report(measured: readonly Measurement[][]): void {
  console.log(
    '\ntransactional: emails of a saved template, from request to sink, medians of interleaved rounds',
  );
  console.table(
    comparisons.map((connections, index) => {
      const of = (pick: (measurement: Measurement) => number) => median((measured[index] ?? []).map(pick));
      return {
        connections,
        'accepted a second': Math.round(of(({ acceptedPerSecond }) => acceptedPerSecond)),
        'delivered a second': Math.round(of(({ deliveredPerSecond }) => deliveredPerSecond)),
        'p50 ms': of(({ p50Ms }) => p50Ms).toFixed(1),
        'p99 ms': of(({ p99Ms }) => p99Ms).toFixed(1),
        'API µs': Math.round(of(({ apiUs }) => apiUs)),
        'worker µs': Math.round(of(({ workerUs }) => workerUs)),
        'PostgreSQL µs': Math.round(of(({ postgresUs }) => postgresUs)),
      };
    }),
  );
}
