import { chmod, mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { updateOrganization } from '../src/accounts/accounts.ts';
import { createDefinition } from '../src/events/definitions.ts';
import { systemClock } from '../src/platform/clock.ts';
import { createIds } from '../src/platform/ids.ts';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import { commitSingleRows, writeRequestTo } from './accept.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { type Load, measureLoad } from './load.ts';
import { cleanUpWhenInterrupted, type ServerProcess, startServer } from './processes.ts';

/**
 * How many events of 90,000 contacts are stored: sent one by one over 64 connections, against single-row durable commits
 * by the same driver; and in batches of 500 over 8 connections, against PostgreSQL's own `copy` of the same rows into a
 * table with the same indexes. Each is measured beside its baseline in the same round.
 */
const roundsCount = 3;
const seconds = 4;
const baselineClients = 16;

const forms = [
  { form: 'single', path: '/v1/events/send', connections: 64, events: 1 },
  { form: 'batch', path: '/v1/events/send/batch', connections: 8, events: 500 },
] as const;
type Form = (typeof forms)[number];

type Measurement = Load & { baselinePerSecond: number };

export async function benchEvents(): Promise<void> {
  const installation = await createBenchInstallation();
  const folder = await mkdtemp(path.join(os.tmpdir(), 'postillion-bench-events-'));
  const removeFolder = () => rm(folder, { recursive: true, force: true });
  cleanUpWhenInterrupted(removeFolder);
  try {
    // PostgreSQL writes and reads a file there, as another user where this one is root.
    await chmod(folder, 0o777);
    await prepareAudience(installation);
    const server = await startServer('api', {
      POSTILLION_DATA_DIR: installation.dataDirectory,
      PORT: '0',
      LOG_LEVEL: 'info',
    });
    for (const form of forms) await sendEvents(installation, server, form);
    const measured = forms.map(() => [] as Measurement[]);
    for (let round = 0; round < roundsCount; round += 1) {
      for (const [index, form] of forms.entries()) {
        const sent = await sendEvents(installation, server, form);
        const baselinePerSecond =
          form.form === 'single'
            ? await commitSingleRows(installation, baselineClients)
            : await copyEvents(installation, path.join(folder, `${round}`));
        measured[index]?.push({ ...sent, baselinePerSecond });
      }
    }
    report(measured);
    await server.stop();
  } finally {
    await removeFolder();
    await installation.remove();
  }
}

async function prepareAudience({ database, organizationId }: BenchInstallation): Promise<void> {
  const tools = { database, clock: systemClock, newId: createIds(systemClock) };
  await updateOrganization(tools, organizationId, { eventsPerWindow: 2_000_000_000 });
  await createDefinition({ ...tools, findReadFields: () => Promise.resolve([]) }, organizationId, {
    name: 'order.completed',
    schema: {
      fields: [
        { name: 'total', type: 'number', required: true },
        { name: 'currency', type: 'string' },
        { name: 'placed_on', type: 'date' },
      ],
    },
  });
  await database.rows(
    unpreparedStatement(
      `insert into contacts (organization_id, id, external_id, created_at, updated_at)
       select $1, gen_random_uuid(), 'customer-' || number, now(), now()
       from generate_series(10000, 99999) as number`,
    ),
    [organizationId],
  );
  await database.rows(unpreparedStatement('analyze contacts'));
}

/** The load replaces `#####` with another number each time. */
const event = {
  event: 'order.completed',
  external_id: 'customer-#####',
  payload: {
    total: 49.9,
    currency: 'EUR',
    placed_on: '2026-11-21',
    order: 'A-#####',
    items: 3,
    coupon: null,
  },
};

function sendEvents(installation: BenchInstallation, server: ServerProcess, form: Form): Promise<Load> {
  const { connections, events } = form;
  const content = form.form === 'single' ? event : { events: Array.from({ length: events }, () => event) };
  const request = writeRequestTo(form.path, installation.key, content);
  return measureLoad(installation, server, { request, connections, seconds, isNumbered: true }, events);
}

const copiedRows = 100_000;

/** The rows of the batches that were just stored. */
async function copyEvents({ connectPlainly }: BenchInstallation, file: string): Promise<number> {
  const client = await connectPlainly();
  try {
    await client.query(`copy (select * from events order by id desc limit ${copiedRows}) to '${file}'`);
    await client.query('create table copied_events (like events including all excluding generated)');
    await client.query('checkpoint');
    const startedAtMs = performance.now();
    const { rowCount } = await client.query(`copy copied_events from '${file}'`);
    const perSecond = (rowCount ?? 0) / ((performance.now() - startedAtMs) / 1_000);
    await client.query('drop table copied_events');
    return perSecond;
  } finally {
    await client.end();
  }
}

function report(measured: readonly Measurement[][]): void {
  console.log('\nevents: stored and answered, medians of interleaved rounds');
  console.table(
    forms.map(({ form, connections }, index) => {
      const all = measured[index] ?? [];
      const of = (pick: (measurement: Measurement) => number) => median(all.map(pick));
      return {
        form,
        connections,
        'events a second': Math.round(of(({ perSecond }) => perSecond)),
        baseline: Math.round(of(({ baselinePerSecond }) => baselinePerSecond)),
        ratio: of(({ perSecond, baselinePerSecond }) => perSecond / baselinePerSecond).toFixed(2),
        'p50 ms': of(({ p50Ms }) => p50Ms).toFixed(1),
        'p99 ms': of(({ p99Ms }) => p99Ms).toFixed(1),
        'API µs': of(({ apiUs }) => apiUs).toFixed(0),
        'PostgreSQL µs': of(({ postgresUs }) => postgresUs).toFixed(0),
      };
    }),
  );
  console.log(
    `baseline of single: single-row durable commits a second over ${baselineClients} connections; ` +
      'of batch: rows a second of copy into a table with the same indexes',
  );
}
