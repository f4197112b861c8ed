import { campaignsUnderWay } from '../src/campaigns/campaigns.ts';
import { emailChannel } from '../src/email/email.ts';
import { messageChannels } from '../src/roles/channels.ts';
import { claimDueJobs } from '../src/messages/delivery/claim-store.ts';
import { noHorizon } from '../src/messages/kept.ts';
import { listCampaignRecipients } from '../src/messages/campaigns/recipients.ts';
import { removeOldMessages } from '../src/messages/retention.ts';
import { listMessageTables } from '../src/messages/retention-store.ts';
import { listMessages, listRecipients } from '../src/messages/store.ts';
import { createManualClock } from '../test/support/manual-clock.ts';
import { dateOf, systemClock } from '../src/platform/clock.ts';
import { createIds } from '../src/platform/ids.ts';
import { type Database, unpreparedStatement } from '../src/platform/postgres/database.ts';
import type { PartitionSize } from '../src/platform/postgres/partition-size.ts';
import { createPartitions, measureTables } from '../src/platform/postgres/partitions.ts';
import { createBenchInstallation, median } from './installation.ts';

/**
 * A year and more of messages of thousands of organizations, in partitions as they would be: how long a claim, pages of lists
 * and a change of partitions take, against the same in an empty database. In the same run it says what a million recipients
 * take on disk, by table and index.
 *
 * BENCH_RECIPIENTS (1,000,000 in all), BENCH_ORGANIZATIONS (5,000), BENCH_MONTHS (13) and BENCH_PARTITIONS (month).
 */
const messageTables = listMessageTables(messageChannels);

const dayMs = 86_400_000;
const monthMs = 30 * dayMs;
const rounds = 60;
const claimedAtOnce = 100;
/** They have half of the transactional mail, as much as each would have in earnest. */
const busyOrganizations = 20;
const campaignsAMonth = 50;

type Figures = Record<string, number>;

export async function benchHistory(): Promise<void> {
  const recipients = numberOf('BENCH_RECIPIENTS', 1_000_000);
  const organizations = numberOf('BENCH_ORGANIZATIONS', 5_000);
  const months = numberOf('BENCH_MONTHS', 13);
  const size = (process.env.BENCH_PARTITIONS ?? 'month') as PartitionSize; // Refused by the database otherwise.
  const installation = await createBenchInstallation();
  try {
    const { database } = installation;
    const newId = createIds(systemClock);
    const ids = Array.from({ length: organizations }, () => newId());
    await run(
      database,
      `insert into organizations (id, name, created_at, updated_at)
       select id, 'Organization', now(), now() from unnest($1::uuid[]) as id`,
      [ids],
    );
    await run(
      database,
      "insert into workers (epoch, host, pid, started_at) values (1000000, 'bench', 1, now())",
    );
    const startMs = systemClock.nowMs();
    const world = { database, ids, months, recipients, size };
    const before = await measure({ ...world, atMs: startMs, dropAheadMs: (months + 1) * monthMs });
    await makeRoom(world, startMs);
    const [transactional, campaigns] = [fillTransactional, fillCampaigns];
    let sizes = await sizesOf(database);
    console.log(`\nhistory: ${recipients} recipients of ${organizations} organizations in ${months} months`);
    for (const [what, fill] of Object.entries({ transactional, campaigns })) {
      await fill(world, startMs);
      await tidy(database);
      const filled = await sizesOf(database);
      showGrowth(`${what}, octets a recipient`, { before: sizes, after: filled, recipients: recipients / 2 });
      sizes = filled;
    }
    const [messages] = await measureTables(database, messageTables);
    console.log(`${messages?.partitions ?? 0} partitions a table`);
    const after = await measure({ ...world, atMs: startMs + months * monthMs, dropAheadMs: 0 });
    console.table(
      Object.fromEntries(
        Object.entries(after).map(([what, ms]) => [
          what,
          {
            'empty ms': (before[what] ?? 0).toFixed(2),
            'history ms': ms.toFixed(2),
            ratio: (ms / (before[what] ?? 1)).toFixed(2),
          },
        ]),
      ),
    );
  } finally {
    await installation.remove();
  }
}

type World = {
  database: Database;
  ids: readonly string[];
  months: number;
  recipients: number;
  size: PartitionSize;
};

function run<Row>(database: Database, text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

/** SQL for a UUIDv7 of a time. */
const idAt = (time: string) =>
  `(left(replace(lowest_id_at(${time})::text, '-', ''), 12) || '7' || substr(md5(random()::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15))::uuid`;

/** Makes the partitions of all months. */
async function makeRoom({ database, months, size }: World, startMs: number): Promise<void> {
  for (let day = 0; day <= months * 30; day += 1)
    await createPartitions(database, dateOf(startMs + day * dayMs), size);
}

/** Half of the recipients. Half of these are of a few organizations, the others of all. */
async function fillTransactional(
  { database, ids, months, recipients }: World,
  startMs: number,
): Promise<void> {
  const perMonth = Math.round(recipients / months / 2);
  for (let month = 0; month < months; month += 1) {
    const from = dateOf(startMs + month * monthMs);
    await run(
      database,
      `with message as materialized (
         select ($1::uuid[])[case
             when n % 2 = 0 then 1 + n / 2 % ${busyOrganizations}
             else 1 + (random() * (cardinality($1::uuid[]) - 1))::integer
           end] as organization_id, ${idAt('at')} as id, at, n
         from (select n, $2::timestamptz + n * interval '30 days' / $3 as at from generate_series(1, $3::integer) n) timed
       ), messages_made as (
         insert into messages (organization_id, id, channel, class, status, sender, subject, subject_key, category, details,
           recipient_count, created_at, updated_at)
         select organization_id, id, 'email', 'transactional', 'delivered', 'shop@example.com', 'Order ' || n, 'order ' || n,
           'orders', '{"fromName":"Shop","replyTo":null,"attachments":[]}', 1, at, at
         from message
       ), contents as (
         insert into message_contents (organization_id, message_id, content)
         select organization_id, id, json_build_object('html', $4::text || n, 'text', null) from message
       )
       insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status, status_at,
         handed_off_at)
       select organization_id, id, 0, 'to', address, address, 'delivered', at, at
       from message
       cross join lateral (select 'reader.' || (random() * 1000000)::integer || '@example.com' as address where n > 0) one`,
      [ids, from, perMonth, html],
    );
  }
}

/** The other half: campaigns of the same size. */
async function fillCampaigns({ database, ids, months, recipients }: World, startMs: number): Promise<void> {
  const perMonth = Math.round(recipients / months / 2);
  for (let month = 0; month < months; month += 1) {
    const from = dateOf(startMs + month * monthMs);
    await run(
      database,
      `with message as materialized (
         select organization_id, ${idAt("$2::timestamptz + random() * interval '29 days'")} as id, position
         from unnest($1::uuid[]) with ordinality as o (organization_id, position)
       ), messages_made as (
         insert into messages (organization_id, id, channel, class, status, sender, subject, details, recipient_count,
           created_at, updated_at, campaign_id)
         select organization_id, id, 'email', 'campaign', 'queued', 'news@example.com', 'News',
           '{"fromName":"Shop","replyTo":null,"attachments":[]}', $3, $2, $2, id
         from message
       ), contents as (
         insert into message_contents (organization_id, message_id, content)
         select organization_id, id, json_build_object('html', $4::text, 'text', null) from message
       )
       insert into recipients (organization_id, message_id, ordinal, field, address, address_key, contact_id, variables,
         status, status_at, handed_off_at)
       select organization_id, id, ordinal, 'to', address, address, gen_random_uuid(), '{"first_name":"Ann"}',
         'delivered', $2, $2
       from message
       cross join generate_series(0, $3::integer - 1) as ordinal
       cross join lateral (select 'reader.' || (random() * 1000000)::integer || '@example.com' as address where ordinal >= 0) one`,
      [ids.slice(0, campaignsAMonth), from, Math.round(perMonth / campaignsAMonth), html],
    );
  }
}

async function tidy(database: Database): Promise<void> {
  for (const table of messageTables) await run(database, `vacuum analyze ${table}`);
}

/** 4 kB, with as much repetition as mail has. */
const html = `<html><body>${Array.from(
  { length: 32 },
  (_, line) =>
    `<tr><td style="padding:4px 8px;border-bottom:1px solid #ddd">Article ${line * 7919}</td><td>${(line * 104_729) % 9_973}.00</td></tr>`,
).join('')}</body></html>`;

async function measure({
  database,
  ids,
  size,
  atMs,
  dropAheadMs,
  months,
}: World & { atMs: number; dropAheadMs: number }): Promise<Figures> {
  await createPartitions(database, dateOf(atMs), size);
  const organizationOf = (round: number) => ids[(round * 997) % ids.length] ?? '';
  const page = { limit: 20, after: null, before: null };
  const list = (filter: Parameters<typeof listMessages>[1]['filter'], isBusy = true) =>
    timed((round) => {
      const organizationId = isBusy ? (ids[round % busyOrganizations] ?? '') : organizationOf(round);
      return database.asOrganizations([organizationId], async (transaction) => {
        const rows = await listMessages(transaction, {
          organizationId,
          channel: 'email',
          filter,
          page,
          horizon: { ...noHorizon, atMs },
        });
        await listRecipients(
          transaction,
          organizationId,
          rows.map(({ id }) => id),
        );
      });
    });
  const campaigns = await run<{ organization_id: string; id: string }>(
    database,
    `select organization_id, id from messages where class = 'campaign' order by id desc limit ${rounds}`,
  );
  const figures: Figures = {
    [`claim of ${claimedAtOnce} jobs`]: await claims({ database, ids, atMs }),
    'first page of emails': await list({}),
    'the same, of an organization with few': await list({}, false),
    'emails of a status': await list({ status: 'delivered' }),
    'emails of a category': await list({ category: 'orders' }),
    'emails to an address': await list({ search: { text: 'reader.4711@', address: 'reader.4711@' } }),
    'recipients of a campaign': await timed((round) => {
      const { organization_id: organizationId = organizationOf(round), id: messageId = ids[0] ?? '' } =
        campaigns[round % Math.max(campaigns.length, 1)] ?? {};
      return database.asOrganizations([organizationId], (transaction) =>
        listCampaignRecipients(
          transaction,
          {
            message: { organizationId, messageId },
            rowCount: 1_000,
            isCancelled: false,
            areDevices: false,
          },
          { status: null, page },
        ),
      );
    }),
  };
  const countPartitions = async () =>
    (await measureTables(database, messageTables)).reduce((sum, { partitions }) => sum + partitions, 0);
  const eachOf = async (work: () => Promise<unknown>) => {
    const before = await countPartitions();
    const ms = await once(work);
    return ms / Math.max(Math.abs((await countPartitions()) - before), 1);
  };
  // Those after the ones that there are; and the first month of all, in the empty database as if so much time had passed.
  const laterMs = atMs + (months + 2) * monthMs;
  figures['to make a partition'] = await eachOf(() => createPartitions(database, dateOf(laterMs), size));
  const clock = createManualClock(atMs + dropAheadMs);
  const installed = { messages: Math.max(7, (months - 1) * 30), content: null };
  const waits: number[] = [];
  let isOver = false;
  const meanwhile = (async () => {
    while (!isOver) waits.push(await once(() => accept(database, organizationOf(0), laterMs)));
  })();
  figures['to drop one'] = await eachOf(() =>
    removeOldMessages(
      { database, clock, channels: messageChannels, keeper: campaignsUnderWay, installed },
      new AbortController().signal,
    ),
  );
  isOver = true;
  await meanwhile;
  figures['longest acceptance meanwhile'] = Math.max(...waits);
  return figures;
}

/** A message of a time, and no job. */
async function accept(database: Database, organizationId: string, atMs: number): Promise<void> {
  const id = createIds(createManualClock(atMs))();
  await run(
    database,
    `with message as (
       insert into messages (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
       values ($1, $2, 'email', 'transactional', 'a@example.com', '{}', 1, $3, $3)
     ), content as (
       insert into message_contents (organization_id, message_id, content) values ($1, $2, '{"html":"Hello"}')
     )
     insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at)
     values ($1, $2, 0, 'to', 'ann@example.com', 'ann@example.com', $3)`,
    [organizationId, id, dateOf(atMs)],
  );
}

/** Of jobs of as many organizations, which are deleted afterwards. */
async function claims({
  database,
  ids,
  atMs,
}: Pick<World, 'database' | 'ids'> & { atMs: number }): Promise<number> {
  const newId = createIds(createManualClock(atMs));
  let number = 0;
  const times: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const jobs = Array.from({ length: claimedAtOnce }, (_, index) => ({
      organization: ids[(round * 131 + index) % ids.length],
      id: newId(),
    }));
    await run(
      database,
      `with job as (
         select * from unnest($1::uuid[], $2::uuid[]) as job (organization_id, id)
       ), queued as (
         insert into delivery_queue (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
         select organization_id, id, 0, 'email', 0, $3, $3, 1000 from job
       )
       insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at)
       select organization_id, id, 0, 'to', 'ann@example.com', 'ann@example.com', $3 from job`,
      [jobs.map(({ organization }) => organization), jobs.map(({ id }) => id), dateOf(atMs)],
    );
    number += 1;
    const startedMs = performance.now();
    const { jobs: claimed } = await claimDueJobs(database, {
      epoch: 1_000_000,
      claimNumber: number,
      at: dateOf(atMs),
      channel: emailChannel,
      lane: 0,
      itemsMax: claimedAtOnce,
      afterOrganizationId: '00000000-0000-0000-0000-000000000000',
    });
    times.push(performance.now() - startedMs);
    if (claimed.length !== claimedAtOnce) throw new Error(`claimed ${claimed.length}`);
    await run(database, 'delete from delivery_queue');
  }
  return median(times);
}

async function once(work: () => Promise<unknown>): Promise<number> {
  const startedMs = performance.now();
  await work();
  return performance.now() - startedMs;
}

async function timed(work: (round: number) => Promise<unknown>): Promise<number> {
  const times: number[] = [];
  for (let round = 0; round < rounds; round += 1) times.push(await once(() => work(round)));
  return median(times);
}

/** Of the tables of messages and their indexes, in octets. */
async function sizesOf(database: Database): Promise<Map<string, number>> {
  const rows = await run<{ name: string; bytes: number }>(
    database,
    `select part.name, sum(part.bytes)::float8 as bytes
     from unnest($1::text[]) as parent
     cross join lateral partitions_of(parent::regclass) p
     cross join lateral (
       select parent as name, pg_table_size(p.name::regclass) as bytes
       union all
       select coalesce(above.relname, 'an index'), pg_relation_size(i.indexrelid)
       from pg_index i
       left join pg_inherits h on h.inhrelid = i.indexrelid
       left join pg_class above on above.oid = h.inhparent
       where i.indrelid = p.name::regclass
     ) part
     group by part.name
     order by part.name`,
    [[...messageTables]],
  );
  return new Map(rows.map(({ name, bytes }) => [name, bytes]));
}

function showGrowth(
  title: string,
  {
    before,
    after,
    recipients,
  }: { before: Map<string, number>; after: Map<string, number>; recipients: number },
): void {
  const grown = [...after]
    .map(([name, bytes]) => [name, (bytes - (before.get(name) ?? 0)) / recipients] as const)
    .filter(([, octets]) => octets >= 0.5);
  const sum = grown.reduce((total, [, octets]) => total + octets, 0);
  console.log(title);
  console.table(
    Object.fromEntries([...grown, ['all', sum] as const].map(([name, octets]) => [name, octets.toFixed(0)])),
  );
}

function numberOf(name: string, otherwise: number): number {
  return Number(process.env[name] ?? otherwise);
}
