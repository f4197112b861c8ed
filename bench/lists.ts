import { readFileSync } from 'node:fs';
import path from 'node:path';
import { createApiKey, createOrganization, updateOrganization } from '../src/accounts/accounts.ts';
import { dateOf, systemClock } from '../src/platform/clock.ts';
import { createIds } from '../src/platform/ids.ts';
import { type Database, unpreparedStatement } from '../src/platform/postgres/database.ts';
import { createPartitions } from '../src/platform/postgres/partitions.ts';
import { fillAudience, idOfFilled } from './audience-data.ts';
import { createBenchInstallation, median } from './installation.ts';
import { startServer } from './processes.ts';

/**
 * An organization with two million messages of a year, and many contacts and campaigns: how long the first page of every
 * list takes, under every filter and search that the description of the API has, against the same request of an
 * organization without anything. A new filter needs its values below, or the benchmark ends.
 *
 * BENCH_MESSAGES (2,000,000), BENCH_CONTACTS (200,000), BENCH_CAMPAIGNS (20,000) and BENCH_ROUNDS (15) change that.
 */
const dayMs = 86_400_000;
const months = 12;
/** Of a hundred messages. */
const channelShares = { email: 70, sms: 10, push: 10, chatapp: 10 };
type Channel = keyof typeof channelShares;
const channels = Object.keys(channelShares) as Channel[];

/**
 * Half of the messages, of all times: what many begin with. A quarter, all of them in the first four months: what many begin
 * with and none of late. Thirty, in the first month: what is rare and old.
 */
const subjects = { common: 'Your order', old: 'Your voucher', rare: 'Your refund' };

/** What is asked of each filter, by its name in a query; null where a list has it under another meaning. */
const values: Readonly<Record<string, (of: string) => readonly string[]>> = {
  search: (of) =>
    of === 'contacts'
      ? ['a', 'ada smith', 'crm-4711', 'zzzz']
      : of === 'sms'
        ? ['+1415', '+14155550001', '+4499', 'zzzz']
        : of.endsWith('campaigns')
          ? ['News', 'News 4711', 'zzzz']
          : of === 'push' || of === 'chatapp' || of === 'email'
            ? [...Object.values(subjects), 'reader.1', 'reader.4711@', '+1415', 'zzzz']
            : ['l', 'list-7', 'zzzz'],
  status: statusesOf,
  category: (of) => (of.startsWith('chatapp') ? ['utility', 'marketing'] : ['orders', 'none']),
  email: () => ['nobody@example.com'],
  external_id: () => ['crm-4711', 'crm-none'],
  phone_number: () => ['+4915010004711'],
  list_id: () => [idOfFilled('list', 1), idOfFilled('list', 49)],
  tag_id: () => [idOfFilled('tag', 1), idOfFilled('tag', 99)],
  segment_id: () => [],
  name: () => ['order_update'],
  language: () => ['en'],
  template_types: () => [],
  template_seasons: () => [],
  template_features: () => [],
  template_industries: () => [],
};

/** Which statuses there are, most of all first. */
function statusesOf(list: string): readonly string[] {
  if (list.endsWith('campaigns')) return ['draft', 'scheduled'];
  if (list === 'chatapp/templates') return ['approved'];
  return [list === 'push' ? 'sent' : 'delivered', 'failed', 'queued'];
}

/** Written out, or the name of one that several routes have. */
type Parameter = { in: string; name: string } | { $ref: string };

/** Lists of an organization: all GET routes that have pages and no id in their path. */
function listsOfApi(): { list: string; filters: string[] }[] {
  const file = path.resolve(import.meta.dirname, '../openapi.json');
  const { paths } = JSON.parse(readFileSync(file, 'utf8')) as {
    paths: Record<string, { get?: { parameters?: Parameter[] } }>;
  };
  return Object.entries(paths).flatMap(([route, { get }]) => {
    const query = (get?.parameters ?? []).map((parameter) =>
      '$ref' in parameter ? parameter.$ref.replace('#/components/parameters/', '') : parameter.name,
    );
    if (route.includes('{') || !query.includes('after')) return [];
    const filters = query.filter((name) => !['limit', 'after', 'before'].includes(name));
    return [{ list: route.replace('/v1/', ''), filters }];
  });
}

/** The queries of a list: without a filter, from the middle, with each filter alone, and with a search and each other. */
function queriesOf(
  { list, filters }: { list: string; filters: readonly string[] },
  middle: string,
): string[] {
  const valuesOf = (filter: string) => {
    const found = values[filter];
    if (found === undefined) throw new Error(`there are no values for the filter ${filter} of ${list}`);
    return found(list).map((value) => `${filter}=${encodeURIComponent(value)}`);
  };
  const alone = filters.flatMap(valuesOf);
  const searches = filters.includes('search') ? valuesOf('search') : [];
  const others = filters
    .filter((filter) => filter !== 'search')
    .flatMap((filter) => valuesOf(filter).slice(0, 1));
  const together = searches.flatMap((search) => others.map((other) => `${search}&${other}`));
  return ['', `after=${middle}`, ...alone, ...together];
}

export async function benchLists(): Promise<void> {
  const numberOf = (name: string, otherwise: number) => Number(process.env[name] ?? otherwise);
  const messages = numberOf('BENCH_MESSAGES', 2_000_000);
  const rounds = numberOf('BENCH_ROUNDS', 15);
  const installation = await createBenchInstallation();
  try {
    const { database, organizationId, key, dataDirectory } = installation;
    const tools = { database, clock: systemClock, newId: createIds(systemClock) };
    const { id: emptyId } = await createOrganization(tools, 'Empty');
    await updateOrganization(tools, emptyId, { requestsPerWindow: 2_000_000_000 });
    const empty = await createApiKey(tools, {
      ...{ organizationId: emptyId, name: 'Benchmark', scopes: ['full_access'], expiresAt: null },
    });
    const startedAtMs = performance.now();
    const nowMs = systemClock.nowMs();
    await fillMessages(database, { organizationId, messages, nowMs });
    await fillAudience(database, { organizationId, contacts: numberOf('BENCH_CONTACTS', 200_000) });
    await fillCampaigns(database, { organizationId, campaigns: numberOf('BENCH_CAMPAIGNS', 20_000), nowMs });
    for (const table of ['messages', 'recipients', 'contacts', 'memberships', 'campaigns'])
      await run(database, `vacuum analyze ${table}`);
    const seconds = ((performance.now() - startedAtMs) / 1_000).toFixed(0);
    console.log(`\nlists: ${messages} messages made in ${seconds} s`);
    const api = await startServer('api', {
      POSTILLION_DATA_DIR: dataDirectory,
      PORT: '0',
      LOG_LEVEL: 'info',
    });
    const middle = await idAtTime(database, dateOf(nowMs - (months / 2) * 30 * dayMs));
    const rows: Record<string, unknown>[] = [];
    for (const asked of listsOfApi()) {
      for (const query of queriesOf(asked, middle)) {
        const address = `${api.url}/v1/${asked.list}?limit=20${query === '' ? '' : `&${query}`}`;
        const [full, none] = [await timesOf(address, key, rounds), await timesOf(address, empty.key, rounds)];
        rows.push({
          request: `${asked.list}?${decodeURIComponent(query)}`,
          'median ms': full.median.toFixed(1),
          'worst ms': full.worst.toFixed(1),
          'empty ms': none.median.toFixed(1),
          ratio: (full.median / none.median).toFixed(1),
        });
      }
    }
    console.table(rows);
    console.log('of them those that take longer than 50 ms');
    console.table(rows.filter((row) => Number(row['median ms']) > 50));
    await api.stop();
  } finally {
    await installation.remove();
  }
}

async function timesOf(
  address: string,
  key: string,
  rounds: number,
): Promise<{ median: number; worst: number }> {
  const times: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const startedAtMs = performance.now();
    const response = await fetch(address, { headers: { authorization: `Bearer ${key}` } });
    const text = await response.text();
    if (!response.ok) throw new Error(`${address}: ${response.status} ${text}`);
    times.push(performance.now() - startedAtMs);
  }
  // The first one plans, and reads from the disk.
  return { median: median(times), worst: Math.max(...times.slice(1)) };
}

function run<Row>(database: Database, text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

async function idAtTime(database: Database, at: Date): Promise<string> {
  const [row] = await run<{ id: string }>(database, 'select lowest_id_at($1) as id', [at]);
  return row?.id ?? '';
}

/** SQL for a UUIDv7 of a time. */
const idAt = (time: string) =>
  `(left(replace(lowest_id_at(${time})::text, '-', ''), 12) || '7' || substr(md5(random()::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15))::uuid`;

/** What a record of a channel is made of, besides its recipient. */
const details: Readonly<Record<Channel, string>> = {
  email: '{"fromName":"Shop","replyTo":null,"attachments":[]}',
  sms: '{"encoding":"gsm7","segments":1}',
  push: '{}',
  chatapp: '{}',
};

async function fillMessages(
  database: Database,
  { organizationId, messages, nowMs }: { organizationId: string; messages: number; nowMs: number },
): Promise<void> {
  const startMs = nowMs - months * 30 * dayMs;
  for (let day = 0; day <= months * 30; day += 1)
    await createPartitions(database, dateOf(startMs + day * dayMs));
  for (const channel of channels) {
    const perMonth = Math.round((messages * channelShares[channel]) / 100 / months);
    for (let month = 0; month < months; month += 1)
      await run(
        database,
        `with message as materialized (
           select n, ${idAt('at')} as id, at,
             case
               when $6 = 0 and n <= 30 then '${subjects.rare} '
               when n % 4 < 2 then '${subjects.common} '
               when n % 4 = 2 and $6 < 4 then '${subjects.old} '
               else 'Hello '
             end || n as subject
           from (
             select n, $3::timestamptz + n * interval '30 days' / $4 as at from generate_series(1, $4::integer) n
           ) timed
         ), made as (
           insert into messages (organization_id, id, channel, class, status, sender, subject, subject_key, category,
             details, recipient_count, created_at, updated_at)
           select $1, id, $2, 'transactional', case when n % 20 = 0 then 'failed' when $2 = 'push' then 'sent' else 'delivered' end,
             case when $2 = 'sms' then '+14155550001' else 'shop@example.com' end, subject, lower(subject),
             case when n % 3 = 0 then case when $2 = 'chatapp' then 'utility' else 'orders' end end, $5::json, 1, at, at
           from message
         ), contents as (
           insert into message_contents (organization_id, message_id, content)
           select $1, id, '{"html":"Hello","text":null,"body":"Hello","title":"Hello"}'
           from message
         )
         insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status, status_at,
           handed_off_at)
         select $1, id, 0, 'to', address, address, 'delivered', at, at
         from message
         cross join lateral (
           select case
               when $2 = 'email' then 'reader.' || (random() * 1000000)::integer || '@example.com'
               else '+1415' || (1000000 + random() * 1000000)::integer
             end as address
           where n > 0
         ) one`,
        [organizationId, channel, dateOf(startMs + month * 30 * dayMs), perMonth, details[channel], month],
      );
  }
}

async function fillCampaigns(
  database: Database,
  { organizationId, campaigns, nowMs }: { organizationId: string; campaigns: number; nowMs: number },
): Promise<void> {
  await run(
    database,
    `insert into campaigns (organization_id, id, channel, name, name_key, status, content, created_at, updated_at)
     select $1, ${idAt('at')}, ($4::text[])[1 + n % 4], 'News ' || n, 'news ' || n, 'draft', '{}', at, at
     from (select n, $2::timestamptz + n * interval '1 minute' as at from generate_series(1, $3::integer) n) timed`,
    [organizationId, dateOf(nowMs - 60 * dayMs), campaigns, channels],
  );
}
