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
 * announced and every outcome written. Once as a campaign to contacts, who may have objected; once as a campaign of whose
 * contacts one in twenty has unsubscribed meanwhile, and one in twenty is deferred by the sink; and once as many messages
 * with one recipient each. Unsigned, the baseline is nodemailer's pool with the same content; signed, it is what the
 * cores could sign if they did nothing else. No table is analyzed before, as on the first day of an installation.
 */
const roundsCount = Number(process.env.BENCH_ROUNDS ?? 3);
const recipientsCount = 20_000;
const singleMessagesCount = 8_000;
const baselineCount = 2_000;
const connections = Number(process.env.BENCH_CONNECTIONS ?? 16);
/** One in so many contacts of a troubled campaign has unsubscribed, and one is deferred. */
const troubledOneIn = 20;
const deferredMark = 'later';

const fields = ['first_name', 'last_name', 'city', 'plan', 'company', 'coupon', 'product', 'agent'];
const html = `<html><body>${fields.map((field) => `<p>Dear {{${field}}}, ${'lorem ipsum dolor sit amet '.repeat(46)}</p>`).join('\n')}</body></html>`;
const valuesOf = (index: number) =>
  Object.fromEntries(fields.map((field) => [field, `${field} of number ${index}`]));

export type DeliveryRun = {
  measured: string;
  perSecond: number;
  workerUs: number | null;
  postgresUs: number | null;
  /** What PostgreSQL did for each recipient, and when the outcomes of half and of nearly all of them were known. */
  work?: { commits: number; walBytes: number; p50Ms: number; p99Ms: number };
};

export type DeliveryLoad = {
  measured: string;
  seed: (installation: BenchInstallation, count: number) => Promise<void>;
  count: number;
  /** The status of a recipient to whom it has been handed over. */
  endStatus: 'delivered' | 'sent';
  /** How many recipients end otherwise: they were dropped, or wait for another attempt. */
  troubled?: number;
};

export const campaign: DeliveryLoad = {
  measured: 'campaign',
  seed: seedCampaign,
  count: recipientsCount,
  endStatus: 'delivered',
};
const troubledCampaign: DeliveryLoad = {
  measured: 'campaign, 5 % unsubscribed, 5 % deferred',
  seed: (installation, count) => seedCampaign(installation, count, { isTroubled: true }),
  count: recipientsCount,
  endStatus: 'delivered',
  troubled: (2 * recipientsCount) / troubledOneIn,
};
export const transactional: DeliveryLoad = {
  measured: 'transactional',
  seed: seedSingles,
  count: singleMessagesCount,
  endStatus: 'delivered',
};

type Runs = Record<'baseline' | 'campaign' | 'troubled' | 'transactional', DeliveryRun[]>;

export async function benchDeliver({ isSigned }: { isSigned: boolean }): Promise<void> {
  const installation = await createBenchInstallation({ isSigned });
  const runs: Runs = { baseline: [], campaign: [], troubled: [], transactional: [] };
  try {
    const sink = await startBenchSink();
    const worker = await startServer('worker', benchWorkerEnvironment(installation, sink.port));
    await deliver(installation, worker, { ...campaign, count: 2_000 });
    for (let round = 0; round < roundsCount; round += 1) {
      runs.baseline.push(await (isSigned ? signOnly() : sendByNodemailer(sink.port)));
      runs.campaign.push(await deliver(installation, worker, campaign));
      runs.troubled.push(await deliver(installation, worker, troubledCampaign));
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
  const sink = startModule('test/support/smtp-sink-process.ts', [
    JSON.stringify({ deferring: deferredMark }),
  ]);
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
  workers: LineProcess | readonly LineProcess[],
  { measured, seed, count, endStatus, troubled = 0 }: DeliveryLoad,
): Promise<DeliveryRun> {
  const { database, dataDirectory } = installation;
  await seed(installation, count);
  // What seeding was the reason for is over by then.
  await sleep(settlingMs);
  await release(installation);
  const before = await readCounters(database);
  const workersUs = () => [workers].flat().reduce((sum, { pid }) => sum + (cpuUs(pid) ?? 0), 0);
  const workerBeforeUs = workersUs();
  const postgresBeforeUs = postgresCpuUs(dataDirectory);
  const startedAtMs = performance.now();
  await database.rows(unpreparedStatement("select pg_notify('postillion_deliveries', '')"));
  for (;;) {
    // In the order of the primary key, whose dead entries are skipped; the table itself would be read through.
    const left = await database.rows(
      unpreparedStatement(
        `(select from delivery_queue where attempts = 0 order by organization_id, message_id, ordinal limit 1)
         union all
         (select from delivery_slices order by organization_id, message_id, first_ordinal limit 1)`,
      ),
    );
    if (left.length === 0) break;
    await sleep(100);
  }
  const elapsedSeconds = (performance.now() - startedAtMs) / 1_000;
  const workerUs = (workersUs() - workerBeforeUs) / count;
  const postgresUs = (postgresCpuUs(dataDirectory) - postgresBeforeUs) / count;
  const work = await readWork(database, { before, count });
  const [{ failed } = { failed: 0 }] = await database.rows(
    unpreparedStatement<{ failed: number }>(
      `select count(*)::integer as failed from recipients where status <> '${endStatus}' or uncertain`,
    ),
  );
  if (failed !== troubled) throw new Error(`${failed} recipients were not delivered to, and not ${troubled}`);
  if (troubled > 0) await forgetTroubled(database, endStatus);
  return { measured, perSecond: count / elapsedSeconds, workerUs, postgresUs, work };
}

type Counters = { commits: number; wal: number; at: Date };

async function readCounters(database: BenchInstallation['database']): Promise<Counters> {
  const [counters] = await database.rows(
    unpreparedStatement<Counters>(
      `select xact_commit::float8 as commits, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 as wal,
         clock_timestamp() as at
       from pg_stat_database
       where datname = current_database()`,
    ),
  );
  if (counters === undefined) throw new Error('PostgreSQL counts nothing');
  return counters;
}

/** Sessions tell what they have committed after a second at the earliest, and those that are idle after ten. */
const countsLingerMs = 11_000;

async function readWork(
  database: BenchInstallation['database'],
  { before, count }: { before: Counters; count: number },
): Promise<NonNullable<DeliveryRun['work']>> {
  const { wal } = await readCounters(database);
  const [times] = await database.rows(
    unpreparedStatement<{ p50: number; p99: number }>(
      `select percentile_disc(0.5) within group (order by ms) as p50,
         percentile_disc(0.99) within group (order by ms) as p99
       from (
         select extract(epoch from status_at - $1::timestamptz)::float8 * 1000 as ms
         from recipients
         where status_at > $1
       ) settled`,
    ),
    [before.at],
  );
  await sleep(countsLingerMs);
  const { commits } = await readCounters(database);
  return {
    commits: (commits - before.commits) / count,
    walBytes: (wal - before.wal) / count,
    p50Ms: times?.p50 ?? Number.NaN,
    p99Ms: times?.p99 ?? Number.NaN,
  };
}

/** What is deferred would fall due while another load is measured. */
async function forgetTroubled(database: BenchInstallation['database'], endStatus: string): Promise<void> {
  await database.rows(unpreparedStatement('delete from delivery_queue'));
  await database.rows(unpreparedStatement(`delete from recipients where status <> '${endStatus}'`));
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

async function seedCampaign(
  { database, organizationId }: BenchInstallation,
  count: number,
  { isTroubled = false } = {},
): Promise<void> {
  const newId = createIds(systemClock);
  const id = newId();
  await insertMessages({ database, organizationId }, [id], 'campaign', count);
  const contacts = Array.from({ length: count }, (_none, index) => {
    const isDeferred = isTroubled && index % troubledOneIn === 1;
    return {
      id: newId(),
      email: `${isDeferred ? deferredMark : 'r'}${index}-${id}@example.com`,
      values: JSON.stringify(valuesOf(index)),
      unsubscribed: isTroubled && index % troubledOneIn === 0 ? '{email}' : '{}',
    };
  });
  await database.rows(
    unpreparedStatement(
      `with contact as (
         select * from unnest($3::uuid[], $4::text[], $5::text[], $6::text[])
           with ordinality as contact (id, email, variables, unsubscribed, n)
       ), made as (
         insert into contacts (organization_id, id, email, email_key, unsubscribed_channels, created_at, updated_at)
         select $1, id, email, email, unsubscribed::text[], now(), now() from contact
       )
       insert into recipients
         (organization_id, message_id, ordinal, field, address, address_key, contact_id, variables, status_at)
       select $1, $2, n, 'to', email, email, id, variables::json, now() from contact`,
    ),
    [
      organizationId,
      id,
      contacts.map((contact) => contact.id),
      contacts.map(({ email }) => email),
      contacts.map(({ values }) => values),
      contacts.map(({ unsubscribed }) => unsubscribed),
    ],
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
      JSON.stringify({ fromName: 'News', replyTo: null, attachments: [], listIds: [] }),
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

function report(runs: Readonly<Runs>): void {
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
        ...reportWork(all),
      };
    }),
  );
}

export function reportWork(runs: readonly DeliveryRun[]): Record<string, string> {
  const medianOf = (read: (work: NonNullable<DeliveryRun['work']>) => number, digits: number) =>
    median(runs.map(({ work }) => (work === undefined ? Number.NaN : read(work)))).toFixed(digits);
  return {
    commits: medianOf(({ commits }) => commits, 3),
    'WAL octets': medianOf(({ walBytes }) => walBytes, 0),
    'p50 ms': medianOf(({ p50Ms }) => p50Ms, 0),
    'p99 ms': medianOf(({ p99Ms }) => p99Ms, 0),
  };
}
