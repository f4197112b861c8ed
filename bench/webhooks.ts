import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from 'undici';
import { createHorizon } from '../src/messages/messages.ts';
import { systemClock } from '../src/platform/clock.ts';
import { createIds } from '../src/platform/ids.ts';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import { createEventDescribers } from '../src/roles/event-describers.ts';
import { createWebhook } from '../src/webhooks/keeping.ts';
import { readEvents } from '../src/webhooks/log.ts';
import { createWebhookSecret, signWebhook } from '../src/webhooks/signature.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { cpuUs, type LineProcess, postgresCpuUs, startModule, startServer } from './processes.ts';

/**
 * 500 events to each of 20 endpoints of an organization, 10,000 webhooks in all, from the log to receivers in another
 * process. The baseline is a bare loop over undici's client, of as many connections, which signs the same bodies and posts
 * them to the same receivers, in the same round.
 */
const roundsCount = Number(process.env.BENCH_ROUNDS ?? 3);
const eventsCount = Number(process.env.BENCH_EVENTS ?? 500);
const endpointsCount = 20;
const concurrency = 5;
const webhooksCount = eventsCount * endpointsCount;

type Run = { measured: string; perSecond: number; senderUs: number; postgresUs: number | null };

export async function benchWebhooks(): Promise<void> {
  const installation = await createBenchInstallation();
  try {
    const receivers = await startReceivers();
    const worker = await startServer('worker', {
      POSTILLION_DATA_DIR: installation.dataDirectory,
      POSTILLION_WEBHOOK_ALLOW_HOSTS: '127.0.0.1',
      LOG_LEVEL: 'info',
    });
    await createEndpoints(installation, receivers.port);
    await logEvents(installation);
    const bodies = await readBodies(installation);
    await tell(installation, worker, receivers);
    const told: Run[] = [];
    const baseline: Run[] = [];
    for (let round = 0; round < roundsCount; round += 1) {
      baseline.push(await postPlainly(receivers, bodies));
      told.push(await tell(installation, worker, receivers));
    }
    report(baseline, told);
    await worker.stop();
    await receivers.stop();
  } finally {
    await installation.remove();
  }
}

export type Receivers = LineProcess & { port: number; received: () => Promise<number> };

export async function startReceivers(): Promise<Receivers> {
  const process = startModule('bench/webhook-receivers-process.ts', []);
  const { port } = (await process.nextLine((line) => 'port' in line)) as { port: number };
  return {
    ...process,
    port,
    received: async () => {
      const line = process.nextLine((candidate) => 'count' in candidate);
      process.write('\n');
      return ((await line) as { count: number }).count;
    },
  };
}

async function createEndpoints(
  { database, organizationId, secrets }: BenchInstallation,
  port: number,
): Promise<void> {
  const tools = {
    database,
    clock: systemClock,
    newId: createIds(systemClock),
    secrets,
    onUntold: () => undefined,
  };
  for (let number = 1; number <= endpointsCount; number += 1) {
    await createWebhook(tools, organizationId, {
      kind: 'url',
      url: `http://127.0.0.1:${port}/${number}`,
      events: ['*'],
      concurrency,
    });
  }
}

/** An email each, delivered to its only recipient. */
async function logEvents({ database, organizationId }: BenchInstallation): Promise<void> {
  const newId = createIds(systemClock);
  await database.rows(
    unpreparedStatement(
      `with message as (
         insert into messages (organization_id, id, channel, class, status, sender, subject, subject_key, details,
           recipient_count, created_at, updated_at)
         select $1, id, 'email', 'transactional', 'delivered', 'news@postillion.test', 'Your parcel', 'your parcel', '{}', 1,
           now(), now()
         from unnest($2::uuid[]) as given (id)
         returning id
       ), recipient as (
         insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status, status_at)
         select $1, id, 0, 'to', 'somebody@example.com', 'somebody@example.com', 'delivered', now()
         from message
       )
       insert into webhook_outbox (organization_id, type, happened_at, subject_ids, ordinals)
       select $1, 'email.delivered', now(), array[id], array[0]
       from message`,
    ),
    [organizationId, Array.from({ length: eventsCount }, () => newId())],
  );
  await database.rows(unpreparedStatement("select pg_notify('postillion_webhook_outbox', '')"));
  await untilTold({ database });
}

export async function untilTold({ database }: Pick<BenchInstallation, 'database'>): Promise<void> {
  for (;;) {
    const left = await database.rows(
      unpreparedStatement(
        `select from webhook_outbox
         union all
         select from webhook_cursors join webhook_positions using (organization_id) where next_position <= last_position
         limit 1`,
      ),
    );
    if (left.length === 0) return;
    await sleep(20);
  }
}

async function readBodies({ database, organizationId, secrets }: BenchInstallation): Promise<Buffer[]> {
  const noLimits = () => ({ messages: null, content: null });
  const describers = createEventDescribers({
    clock: systemClock,
    secrets,
    readHorizon: createHorizon({ clock: systemClock, installed: noLimits }),
    hosts: { bounceHost: null, trackingHost: 'track.postillion.test' },
  });
  const bodies: Buffer[] = [];
  for (let from = 1; bodies.length < eventsCount;) {
    const page = await readEvents(
      { database, describers },
      { organizationId, from, patterns: ['*'], limit: 200 },
    );
    bodies.push(...page.data.map((event) => Buffer.from(JSON.stringify(event))));
    from = page.next;
  }
  return bodies;
}

async function tell(
  { database, dataDirectory }: BenchInstallation,
  { pid }: LineProcess,
  { received }: Receivers,
): Promise<Run> {
  const receivedBefore = await received();
  const senderBeforeUs = cpuUs(pid) ?? 0;
  const postgresBeforeUs = postgresCpuUs(dataDirectory);
  const startedAtMs = performance.now();
  await database.rows(
    unpreparedStatement(
      `with cursors as (
         update webhook_cursors set next_position = 1
       )
       update webhook_positions set is_untold = true`,
    ),
  );
  await database.rows(unpreparedStatement("select pg_notify('postillion_webhook_events', '')"));
  await untilTold({ database });
  const seconds = (performance.now() - startedAtMs) / 1_000;
  const count = (await received()) - receivedBefore;
  if (count !== webhooksCount) throw new Error(`${count} webhooks were received, and not ${webhooksCount}`);
  return {
    measured: 'webhooks',
    perSecond: webhooksCount / seconds,
    senderUs: ((cpuUs(pid) ?? 0) - senderBeforeUs) / webhooksCount,
    postgresUs: (postgresCpuUs(dataDirectory) - postgresBeforeUs) / webhooksCount,
  };
}

async function postPlainly({ port }: Receivers, bodies: readonly Buffer[]): Promise<Run> {
  const secret = createWebhookSecret();
  const newId = createIds(systemClock);
  const ids = bodies.map(() => newId());
  const before = process.cpuUsage();
  const startedAtMs = performance.now();
  await Promise.all(
    Array.from({ length: endpointsCount }, async (_none, number) => {
      const queue = bodies.entries();
      const work = async () => {
        const client = new Client(`http://127.0.0.1:${port}`);
        for (const [place, body] of queue) {
          const message = { id: ids[place] ?? '', timestampSeconds: Math.floor(Date.now() / 1_000), body };
          const { statusCode, body: answer } = await client.request({
            method: 'POST',
            path: `/${number + 1}`,
            headers: { 'content-type': 'application/json', ...signWebhook(message, [secret]) },
            body,
          });
          await answer.dump();
          if (statusCode !== 204) throw new Error(`the answer was ${statusCode}`);
        }
        await client.close();
      };
      await Promise.all(Array.from({ length: concurrency }, work));
    }),
  );
  const perSecond = webhooksCount / ((performance.now() - startedAtMs) / 1_000);
  const { user, system } = process.cpuUsage(before);
  return {
    measured: "undici's client",
    perSecond,
    senderUs: (user + system) / webhooksCount,
    postgresUs: null,
  };
}

function report(baseline: readonly Run[], told: readonly Run[]): void {
  console.log('\nwebhooks: from the log to receivers, medians of interleaved rounds');
  const ofBaseline = median(baseline.map(({ perSecond }) => perSecond));
  console.table(
    [baseline, told].map((runs) => {
      const perSecond = median(runs.map((run) => run.perSecond));
      return {
        name: runs[0]?.measured,
        'per second': Math.round(perSecond),
        'to baseline': (perSecond / ofBaseline).toFixed(2),
        'sender µs': Math.round(median(runs.map(({ senderUs }) => senderUs))),
        'PostgreSQL µs': Math.round(median(runs.map(({ postgresUs }) => postgresUs ?? Number.NaN))),
      };
    }),
  );
}
