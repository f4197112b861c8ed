import { setTimeout as sleep } from 'node:timers/promises';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import { fillAudience, idOfFilled, listsCount, tagsCount } from './audience-data.ts';
import { benchWorkerEnvironment, measureDelivery, startBenchSink } from './deliver.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { cpuUs, peakMemoryMb, postgresCpuUs, startServer } from './processes.ts';

/**
 * A campaign to a million contacts in lists, tags and a segment, sent through the API, 10 kB of HTML with eight
 * placeholders: how long it takes to freeze the audience, until the first message leaves, and until the last one has;
 * and what becomes of a transactional email that is sent every second meanwhile. The baselines are the insert of as
 * many plain rows, and the rate of `deliver`.
 */
const contacts = Number(process.env.BENCH_CONTACTS ?? 1_000_000);

const fields = ['first_name', 'last_name', 'city', 'plan', 'company', 'coupon', 'source', 'gender'];
const html = `<html><body>${fields.map((field) => `<p>Dear {{${field}}}, ${'lorem ipsum dolor sit amet '.repeat(46)}</p>`).join('\n')}<a href="{{unsubscribe_url}}">Unsubscribe</a></body></html>`;

export async function benchCampaign(): Promise<void> {
  const installation = await createBenchInstallation({ isSigned: false });
  const { database, organizationId, dataDirectory } = installation;
  try {
    console.log(`campaign: filling ${contacts} contacts`);
    await fillAudience(database, { organizationId, contacts });
    await fillSegment(installation);
    console.log('campaign: measuring');
    const sink = await startBenchSink();
    const worker = await startServer('worker', benchWorkerEnvironment(installation, sink.port));
    const api = await startServer('api', {
      POSTILLION_DATA_DIR: dataDirectory,
      PORT: '0',
      LOG_LEVEL: 'info',
    });
    const plainSeconds = median(await repeat(plainRoundsCount, () => insertPlainRows(installation)));
    const delivery = await measureDelivery(installation, worker);
    const quietMs = await sendEverySecond(installation, api.url, sleep(10_000));

    const workerBeforeUs = cpuUs(worker.pid) ?? 0;
    const postgresBeforeUs = postgresCpuUs(dataDirectory);
    const campaign = await sendCampaign(installation, api.url);
    const busyMs = await sendEverySecond(installation, api.url, campaign.isOver);
    const result = await campaign.isOver;
    const perSecond = result.audience / result.sentSeconds;
    console.log(`\ncampaign: ${contacts} contacts, of whom ${result.audience} are written to`);
    console.table({
      'plain rows inserted, s': plainSeconds.toFixed(1),
      'audience frozen, s after the answer': result.frozenSeconds.toFixed(2),
      'frozen to plain rows': (result.frozenSeconds / plainSeconds).toFixed(2),
      'first hand-off, s after the answer': result.firstSeconds.toFixed(2),
      'all expanded, s': result.expandedSeconds.toFixed(1),
      'sent, s': result.sentSeconds.toFixed(1),
      'per second': Math.round(perSecond),
      'deliver, per second': Math.round(delivery.perSecond),
      'to deliver': (perSecond / delivery.perSecond).toFixed(2),
      'worker µs a recipient': Math.round(((cpuUs(worker.pid) ?? 0) - workerBeforeUs) / result.audience),
      'PostgreSQL µs a recipient': Math.round(
        (postgresCpuUs(dataDirectory) - postgresBeforeUs) / result.audience,
      ),
      'transactional p50 / p99 / max ms, quiet': describe(quietMs),
      'transactional p50 / p99 / max ms, meanwhile': describe(busyMs),
      'API, peak MB': peakMemoryMb(api.pid),
      'worker, peak MB': peakMemoryMb(worker.pid),
    });
    await Promise.all([worker.stop(), api.stop()]);
    await sink.stop();
  } finally {
    await installation.remove();
  }
}

/** A third of all, as a segment that has been computed. */
async function fillSegment({ database, organizationId }: BenchInstallation): Promise<void> {
  await database.rows(
    unpreparedStatement(
      `insert into contact_sets (organization_id, id, kind, name, name_key, created_at, updated_at)
       values ($1, $2, 'segment', 'a third', 'a third', now(), now())`,
    ),
    [organizationId, segmentId],
  );
  await database.rows(
    unpreparedStatement(
      `insert into memberships (organization_id, set_id, contact_id)
       select organization_id, $2, id from contacts where organization_id = $1 and hashint4(length(email)) % 3 = 0`,
    ),
    [organizationId, segmentId],
  );
}

const segmentId = '01999999-0000-7000-8000-000000000001';

/** One insert took up to twice as long as the next. */
const plainRoundsCount = 5;

async function repeat<Result>(times: number, work: () => Promise<Result>): Promise<Result[]> {
  const results: Result[] = [];
  for (let n = 0; n < times; n += 1) results.push(await work());
  return results;
}

async function insertPlainRows({ database, organizationId }: BenchInstallation): Promise<number> {
  await database.rows(
    unpreparedStatement(
      'create table plain_rows (organization_id uuid, message_id uuid, contact_id uuid, address text)',
    ),
  );
  const startedAtMs = performance.now();
  await database.rows(
    unpreparedStatement(
      'insert into plain_rows select organization_id, $2, id, email from contacts where organization_id = $1',
    ),
    [organizationId, segmentId],
  );
  const seconds = (performance.now() - startedAtMs) / 1_000;
  await database.rows(unpreparedStatement('drop table plain_rows'));
  return seconds;
}

type Result = {
  audience: number;
  frozenSeconds: number;
  firstSeconds: number;
  expandedSeconds: number;
  sentSeconds: number;
};

async function sendCampaign(
  installation: BenchInstallation,
  url: string,
): Promise<{ isOver: Promise<Result> }> {
  const ids = (kind: 'list' | 'tag', count: number) =>
    Array.from({ length: count }, (_none, index) => idOfFilled(kind, index + 1));
  const { id } = await post(installation, url, '/v1/email/campaigns', {
    name: 'Benchmark',
    from: 'news@postillion.test',
    from_name: 'News',
    subject: 'For {{first_name}}',
    html,
    list_ids: ids('list', listsCount),
    tag_ids: ids('tag', tagsCount),
    segment_ids: [segmentId],
  });
  await post(installation, url, `/v1/email/campaigns/${id}/send`, {});
  return { isOver: watch(installation, id, performance.now()) };
}

/** Reads off the tables, and not through the API, which has something to do. */
async function watch(
  { database, organizationId }: BenchInstallation,
  id: string,
  startedAtMs: number,
): Promise<Result> {
  const elapsed = () => (performance.now() - startedAtMs) / 1_000;
  let [frozenSeconds, firstSeconds, expandedSeconds] = [0, 0, 0];
  for (;;) {
    const [row] = await database.rows(
      unpreparedStatement<{
        status: string;
        audience: number | null;
        is_frozen: boolean;
        expanded: number;
        message_id: string;
      }>(
        `select status, audience, frozen_at is not null and frozen_through is null as is_frozen, expanded, message_id
         from campaigns
         where organization_id = $1 and id = $2`,
      ),
      [organizationId, id],
    );
    if (row === undefined) throw new Error('the campaign is not there');
    const audience = row.audience ?? 0;
    if (row.is_frozen && frozenSeconds === 0) frozenSeconds = elapsed();
    if (audience > 0 && firstSeconds === 0) {
      const first = await database.rows(
        unpreparedStatement(
          `select from recipients
           where organization_id = $1 and message_id = $2 and ordinal < 300 and handed_off_at is not null limit 1`,
        ),
        [organizationId, row.message_id],
      );
      if (first.length > 0) firstSeconds = elapsed();
    }
    if (row.is_frozen && row.expanded === audience && expandedSeconds === 0) expandedSeconds = elapsed();
    if (row.status === 'sent') {
      return { audience, frozenSeconds, firstSeconds, expandedSeconds, sentSeconds: elapsed() };
    }
    if (row.status === 'failed' || row.status === 'paused') throw new Error(`the campaign is ${row.status}`);
    await sleep(frozenSeconds === 0 ? 20 : 250);
  }
}

/** Until something is over; returns the milliseconds from each acceptance to the outcome. */
async function sendEverySecond(
  installation: BenchInstallation,
  url: string,
  until: Promise<unknown>,
): Promise<number[]> {
  const { database, organizationId } = installation;
  let isOver = false;
  void until.finally(() => {
    isOver = true;
  });
  const ids: string[] = [];
  while (!isOver) {
    const { id } = await post(installation, url, '/v1/email/send', {
      from: 'hello@postillion.test',
      from_name: 'Benchmark',
      to: ['somebody@example.com'],
      subject: 'One a second',
      text: 'Your code is 123456.',
    });
    ids.push(id);
    await sleep(1_000);
  }
  await sleep(2_000);
  const rows = await database.rows(
    unpreparedStatement<{ waited_ms: number }>(
      `select extract(epoch from r.handed_off_at - m.created_at)::float8 * 1000 as waited_ms
       from messages m
       join recipients r on r.organization_id = m.organization_id and r.message_id = m.id
       where m.organization_id = $1 and m.id = any ($2::uuid[])`,
    ),
    [organizationId, ids],
  );
  return rows.map(({ waited_ms: waitedMs }) => waitedMs ?? Infinity);
}

function describe(values: readonly number[]): string {
  const sorted = [...values].sort((first, second) => first - second);
  const at = (share: number) =>
    Math.round(sorted[Math.min(Math.floor(share * sorted.length), sorted.length - 1)] ?? Number.NaN);
  return `${at(0.5)} / ${at(0.99)} / ${at(1)} (${sorted.length})`;
}

async function post(
  { key }: BenchInstallation,
  url: string,
  path: string,
  body: object,
): Promise<{ id: string }> {
  const response = await fetch(`${url}${path}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return (await response.json()) as { id: string };
}
