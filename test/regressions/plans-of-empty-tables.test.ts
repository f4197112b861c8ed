/**
 * Statements are planned once a connection, and the plan stays until a table is analyzed. So the plans that are made
 * while a month's partition is empty must be good when it is full: every statement uses an index, and reads no table
 * from end to end.
 */
import { readdirSync, readFileSync } from 'node:fs';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { clientConfigOf, useTestDatabase } from '../support/test-database.ts';

type Named = { name: string; text: string };
const named = vi.hoisted((): Named[] => []);

// Every named statement of the program passes here unchanged.
vi.mock('../../src/platform/postgres/database.ts', async (original) => ({
  ...(await original<object>()),
  statement: (name: string, text: string) => {
    named.push({ name, text });
    return { name, text };
  },
}));

/** Those of requests, which run in plain transactions; all others must run in transactions by index. */
const plainNames = [
  'messages_admit_recipients',
  'messages_insert_all',
  'messages_select_admissible',
  'messages_select_content',
  'messages_select_sender',
];

const byIndex = ['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'cpu_operator_cost'];

let address: DatabaseAddress;
let client: pg.Client;

useTestDatabase({}, (opened) => {
  address = opened.address;
});
beforeAll(async () => {
  vi.resetModules();
  for (const file of readdirSync('src', { recursive: true, encoding: 'utf8' })) {
    if (!file.endsWith('store.ts') && !file.endsWith('ids.ts')) continue;
    if (/= statement[<(]/.test(readFileSync(`src/${file}`, 'utf8'))) await import(`../../src/${file}`);
  }
  client = new pg.Client(clientConfigOf(address));
  await client.connect();
});
afterAll(async () => {
  await client.end();
  vi.doUnmock('../../src/platform/postgres/database.ts');
  vi.resetModules();
});

/** The monthly ones, and the queue, which is analyzed when it is empty as a rule. */
const growing = /\b(messages|recipients|message_contents|delivery_queue)\b/;
const growingRelation = /^((messages|recipients|message_contents)_\d|delivery_queue)/;
/** It holds only jobs that crashed their workers. */
const smallIndex = 'delivery_queue_suspects';

type Plan = {
  'Node Type': string;
  'Relation Name'?: string;
  'Index Name'?: string;
  'Index Cond'?: string;
  Plans?: Plan[];
};

/** The generic plan, which is kept for all values. */
async function planOf({ name, text }: Named): Promise<Plan[]> {
  const isPlain = plainNames.includes(name);
  await client.query('begin');
  try {
    await client.query('set local plan_cache_mode = force_generic_plan');
    if (!isPlain)
      for (const setting of byIndex)
        await client.query(`set local ${setting} = ${setting.startsWith('enable') ? 'off' : 0}`);
    await client.query(`prepare looked_at as ${text}`);
    const { rows } = await client.query<{ count: number }>(
      "select cardinality(parameter_types) as count from pg_prepared_statements where name = 'looked_at'",
    );
    const nulls = Array.from({ length: rows[0]?.count ?? 0 }, () => 'null').join(', ');
    const explained = await client.query<{ 'QUERY PLAN': { Plan: Plan }[] }>(
      `explain (format json) execute looked_at${nulls === '' ? '' : `(${nulls})`}`,
    );
    return flatten(explained.rows[0]!['QUERY PLAN'][0]!.Plan);
  } finally {
    await client.query('rollback');
    await client.query('deallocate all');
  }
}

function flatten(plan: Plan): Plan[] {
  return [plan, ...(plan.Plans ?? []).flatMap(flatten)];
}

/** Scans that read more of a partition than they need: an index helps from its first column on, without a gap. */
async function findBroadScans(plans: readonly Plan[]): Promise<string[]> {
  const { rows } = await client.query<{ name: string; columns: string[] }>(
    `select indexrelid::regclass::text as name,
       array(select pg_get_indexdef(indexrelid, n, true) from generate_series(1, indnkeyatts) as n) as columns
     from pg_index`,
  );
  const columnsOf = new Map(rows.map(({ name, columns }) => [name, columns]));
  return plans.flatMap((plan) => {
    const relation = plan['Relation Name'] ?? plan['Index Name'] ?? '';
    if (!growingRelation.test(relation) || plan['Index Name'] === smallIndex) return [];
    if (!plan['Node Type'].includes('Scan')) return [];
    const index = plan['Index Name'];
    if (index === undefined) return plan['Node Type'] === 'Bitmap Heap Scan' ? [] : [`all of ${relation}`];
    const condition = plan['Index Cond'] ?? '';
    const isGiven = (columnsOf.get(index) ?? []).map((column) =>
      new RegExp(`\\b${column}\\b`).test(condition),
    );
    const given = isGiven.filter(Boolean).length;
    const hasGap = isGiven.slice(0, given).includes(false);
    return given >= 2 && !hasGap ? [] : [`${index} by ${condition}`];
  });
}

const statistics: [state: string, prepare: () => Promise<unknown>][] = [
  ['never analyzed', () => Promise.resolve()],
  ['never analyzed, with a few rows', () => fill(12)],
  ['never analyzed, with many rows', () => fill(3_000)],
  [
    'analyzed while they were empty',
    () => client.query('truncate messages, message_contents, recipients; analyze'),
  ],
  ['analyzed with a few rows', () => fill(20).then(() => client.query('analyze'))],
  ['that grew since', () => fill(2_000)],
];

async function fill(messages: number): Promise<void> {
  await client.query(
    `with new_messages as (
       insert into messages (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
       select lpad('', 32, '0')::uuid, overlay(gen_random_uuid()::text placing left(lowest_id_at(now())::text, 13) from 1)::uuid,
         'email', 'transactional', 'a@example.com', '{}', 1, now(), now()
       from generate_series(1, ${messages})
       returning organization_id, id
     ), contents as (
       insert into message_contents (organization_id, message_id, content)
       select organization_id, id, '{}' from new_messages
     )
     insert into recipients (organization_id, message_id, ordinal, field, address, address_key, status_at)
     select organization_id, id, 0, 'to', id || '@example.com', id || '@example.com', now() from new_messages`,
  );
}

describe.each(statistics)('in tables %s', (_state, prepare) => {
  beforeAll(prepare);

  test('every statement finds its rows by an index that has what is looked for', async () => {
    const looked = named.filter(({ text }) => growing.test(text));
    expect(looked.length).toBeGreaterThan(15);
    const broad: Record<string, string[]> = {};
    for (const given of looked) {
      const scans = await findBroadScans(await planOf(given));
      if (scans.length > 0) broad[given.name] = scans;
    }
    expect(broad).toEqual({});
  });
});
