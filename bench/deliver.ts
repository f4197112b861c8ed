import { setTimeout as sleep } from 'node:timers/promises';
import nodemailer from 'nodemailer';
import type { SendingChannel } from '../src/channels/channel.ts';
import { createIds } from '../src/platform/ids.ts';
import { systemClock } from '../src/platform/clock.ts';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { measureRsaSpeed } from './rsa-speed.ts';
import { cpuUs, type LineProcess, postgresCpuUs, startModule, startServer } from './processes.ts';

/**
 * From the queue to an SMTP sink in another process: 10 kB of HTML, personalised for each recipient, every hand-off
 * announced and every outcome written. Once as one message with many recipients, as a campaign is, and once as many
 * messages with one recipient each. Unsigned, the baseline is nodemailer's pool with the same content; signed, it is
 * what the cores could sign if they did nothing else.
 */
const roundsCount = 3;
const recipientsCount = 20_000;
const singleMessagesCount = 8_000;
const baselineCount = 2_000;
const connections = 16;

const fields = ['first_name', 'last_name', 'city', 'plan', 'company', 'coupon', 'product', 'agent'];
const html = `<html><body>${fields.map((field) => `<p>Dear {{${field}}}, ${'lorem ipsum dolor sit amet '.repeat(46)}</p>`).join('\n')}</body></html>`;
const valuesOf = (index: number) =>
  Object.fromEntries(fields.map((field) => [field, `${field} of number ${index}`]));

export type DeliveryRun = {
  measured: string;
  perSecond: number;
  workerUs: number | null;
  postgresUs: number | null;
};

export type DeliveryLoad = {
  measured: string;
  seed: (installation: BenchInstallation, count: number) => Promise<void>;
  count: number;
  /** The status of a recipient to whom it has been handed over. */
  endStatus: 'delivered' | 'sent';
};

const campaign: DeliveryLoad = {
  measured: 'campaign',
  seed: seedCampaign,
  count: recipientsCount,
  endStatus: 'delivered',
};
const transactional: DeliveryLoad = {
  measured: 'transactional',
  seed: seedSingles,
  count: singleMessagesCount,
  endStatus: 'delivered',
};

export async function benchDeliver({ isSigned }: { isSigned: boolean }): Promise<void> {
  const installation = await createBenchInstallation({ isSigned });
  const runs: Record<'baseline' | 'campaign' | 'transactional', DeliveryRun[]> = {
    baseline: [],
    campaign: [],
    transactional: [],
  };
  try {
    const sink = await startBenchSink();
    const worker = await startServer('worker', benchWorkerEnvironment(installation, sink.port));
    await deliver(installation, worker, { ...campaign, count: 2_000 });
    for (let round = 0; round < roundsCount; round += 1) {
      runs.baseline.push(await (isSigned ? signOnly() : sendByNodemailer(sink.port)));
      runs.campaign.push(await deliver(installation, worker, campaign));
      runs.transactional.push(await deliver(installation, worker, transactional));
    }
    report(runs);
    await worker.stop();
    await sink.stop();
  } finally {
    await installation.remove();
  }
}

export async function startBenchSink(): Promise<LineProcess & { port: number }> {
  const sink = startModule('test/support/smtp-sink-process.ts', ['{}']);
  const { port } = (await sink.nextLine((line) => 'port' in line)) as { port: number };
  return { ...sink, port };
}

export function benchWorkerEnvironment({ dataDirectory }: BenchInstallation, sinkPort: number) {
  return {
    POSTILLION_DATA_DIR: dataDirectory,
    POSTILLION_SMTP_URL: `smtp://127.0.0.1:${sinkPort}?connections=${connections}`,
    // Recipients are at names that no name server knows.
    POSTILLION_ADDRESS_CHECKS: 'off',
    LOG_LEVEL: 'info',
  };
}

/** One message to many, as a baseline for others. */
export async function measureDelivery(
  installation: BenchInstallation,
  worker: LineProcess,
): Promise<DeliveryRun> {
  await deliver(installation, worker, { ...campaign, count: 2_000 });
  return deliver(installation, worker, campaign);
}

/** From the moment when the jobs fall due to the last outcome written. */
export async function deliver(
  installation: BenchInstallation,
  worker: LineProcess,
  { measured, seed, count, endStatus }: DeliveryLoad,
): Promise<DeliveryRun> {
  const { database, dataDirectory } = installation;
  await seed(installation, count);
  // What seeding was the reason for is over by then.
  await sleep(settlingMs);
  await release(installation);
  const workerBeforeUs = cpuUs(worker.pid) ?? 0;
  const postgresBeforeUs = postgresCpuUs(dataDirectory);
  const startedAtMs = performance.now();
  await database.rows(unpreparedStatement("select pg_notify('postillion_deliveries', '')"));
  for (;;) {
    // In the order of the primary key, whose dead entries are skipped; the table itself would be read through.
    const left = await database.rows(
      unpreparedStatement(
        `(select from delivery_queue order by organization_id, message_id, ordinal limit 1)
         union all
         (select from delivery_slices order by organization_id, message_id, first_ordinal limit 1)`,
      ),
    );
    if (left.length === 0) break;
    await sleep(100);
  }
  const elapsedSeconds = (performance.now() - startedAtMs) / 1_000;
  const workerUs = ((cpuUs(worker.pid) ?? 0) - workerBeforeUs) / count;
  const postgresUs = (postgresCpuUs(dataDirectory) - postgresBeforeUs) / count;
  const [{ failed } = { failed: 0 }] = await database.rows(
    unpreparedStatement<{ failed: number }>(
      `select count(*) as failed from recipients where status <> '${endStatus}' or uncertain`,
    ),
  );
  if (failed > 0) throw new Error(`${failed} recipients were not delivered to`);
  return { measured, perSecond: count / elapsedSeconds, workerUs, postgresUs };
}

const settlingMs = 500;

/** Lets the workers see what is held, once they are told to look. */
async function release({ database }: BenchInstallation): Promise<void> {
  await database.rows(
    unpreparedStatement(
      `with slices as (
         update delivery_slices set lane = 1
       )
       update delivery_queue set lane = 0`,
    ),
  );
}

async function seedCampaign({ database, organizationId }: BenchInstallation, count: number): Promise<void> {
  const id = createIds(systemClock)();
  await insertMessages({ database, organizationId }, [id], 'campaign', count);
  const variables = Array.from({ length: count }, (_none, index) => JSON.stringify(valuesOf(index)));
  await database.rows(
    unpreparedStatement(
      `insert into recipients (organization_id, message_id, ordinal, field, address, address_key, variables, status_at)
       select $1, $2, n, 'to', 'r' || n || '@example.com', 'r' || n || '@example.com', v::json, now()
       from unnest($3::text[]) with ordinality as r (v, n)`,
    ),
    [organizationId, id, variables],
  );
  await holdSlices({ database, organizationId }, id);
}

async function seedSingles({ database, organizationId }: BenchInstallation, count: number): Promise<void> {
  const newId = createIds(systemClock);
  const ids = Array.from({ length: count }, () => newId());
  await insertMessages({ database, organizationId }, ids, 'transactional', 1);
  await database.rows(
    unpreparedStatement(
      `insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at)
       select $1, id, 0, 'to', 'r@example.com', 'r@example.com', now()
       from unnest($2::uuid[]) as m (id)`,
    ),
    [organizationId, ids],
  );
  await holdRecipients({ database, organizationId }, ids);
}

type Target = Pick<BenchInstallation, 'database' | 'organizationId'>;

async function insertMessages(
  { database, organizationId }: Target,
  ids: readonly string[],
  messageClass: string,
  recipients: number,
): Promise<void> {
  await database.rows(
    unpreparedStatement(
      `with new_messages as (
         insert into messages (organization_id, id, channel, class, sender, subject, subject_key, details,
           recipient_count, created_at, updated_at)
         select $1, id, 'email', $3, 'news@postillion.test', 'For {{first_name}}', 'for', $4, $5, now(), now()
         from unnest($2::uuid[]) as m (id)
       )
       insert into message_contents (organization_id, message_id, content)
       select $1, id, $6 from unnest($2::uuid[]) as m (id)`,
    ),
    [
      organizationId,
      ids,
      messageClass,
      JSON.stringify({ fromName: 'News', replyTo: null, attachments: [] }),
      recipients,
      JSON.stringify({ to: ['somebody@example.com'], cc: [], html, text: null }),
    ],
  );
}

/** As acceptance queues them, but out of the workers' sight until `release`. */
export async function holdRecipients(
  { database, organizationId }: Target,
  messageIds: readonly string[],
  channel: SendingChannel = 'email',
): Promise<void> {
  await database.rows(
    unpreparedStatement(
      `insert into delivery_queue
         (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
       select organization_id, message_id, ordinal, $3, 2, now(), now(), 11000
       from recipients
       where organization_id = $1 and message_id = any ($2::uuid[])`,
    ),
    [organizationId, messageIds, channel],
  );
}

/** As the engine of campaigns admits them, but out of the workers' sight until `release`. */
export async function holdSlices(
  { database, organizationId }: Target,
  messageId: string,
  channel: SendingChannel = 'email',
): Promise<void> {
  await database.rows(
    unpreparedStatement(
      `insert into delivery_slices (organization_id, message_id, first_ordinal, last_ordinal, channel, lane,
         recipients, accepted_at, content_bytes)
       select organization_id, message_id, min(ordinal), max(ordinal), $3, 2, count(*), now(), 11000
       from recipients
       where organization_id = $1 and message_id = $2
       group by organization_id, message_id, ordinal / 250`,
    ),
    [organizationId, messageId, channel],
  );
}

async function sendByNodemailer(port: number): Promise<DeliveryRun> {
  const transport = nodemailer.createTransport({
    host: '127.0.0.1',
    port,
    pool: true,
    maxConnections: connections,
    maxMessages: Number.POSITIVE_INFINITY,
    ignoreTLS: true,
  });
  const startedAtMs = performance.now();
  await Promise.all(
    Array.from({ length: baselineCount }, (_none, index) => {
      const values = valuesOf(index);
      const personal = fields.reduce(
        (text, field) => text.replaceAll(`{{${field}}}`, values[field] ?? ''),
        html,
      );
      return transport.sendMail({
        from: 'News <news@postillion.test>',
        to: `r${index}@example.com`,
        subject: `For ${values.first_name ?? ''}`,
        html: personal,
      });
    }),
  );
  const perSecond = baselineCount / ((performance.now() - startedAtMs) / 1_000);
  transport.close();
  return { measured: "nodemailer's pool", perSecond, workerUs: null, postgresUs: null };
}

async function signOnly(): Promise<DeliveryRun> {
  const { perSecond, measuredBy } = await measureRsaSpeed();
  return { measured: measuredBy, perSecond, workerUs: null, postgresUs: null };
}

function report(runs: Readonly<Record<'baseline' | 'campaign' | 'transactional', DeliveryRun[]>>): void {
  const baseline = median(runs.baseline.map(({ perSecond }) => perSecond));
  console.log('\ndeliver: from the queue to an SMTP sink, outcomes written, medians of interleaved rounds');
  console.table(
    Object.values(runs).map((all) => {
      const perSecond = median(all.map((run) => run.perSecond));
      return {
        name: all[0]?.measured,
        'per second': Math.round(perSecond),
        'to baseline': (perSecond / baseline).toFixed(2),
        'worker µs': Math.round(median(all.map(({ workerUs }) => workerUs ?? Number.NaN))),
        'PostgreSQL µs': Math.round(median(all.map(({ postgresUs }) => postgresUs ?? Number.NaN))),
      };
    }),
  );
}
