/**
 * The statements that accept a message are never planned again on a connection, so that their plan must be right whatever
 * the tables look like when it is made: every account, sender, template and key is looked up by its own key.
 */
import { beforeEach, expect, test } from 'vitest';
import { useTestDatabase } from '../support/test-database.ts';
import { messageChannels } from '../support/channels.ts';
import { claimKeysAtOnce } from '../../src/platform/http/idempotency.ts';
import { type Bound, type Database, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { findContents } from '../../src/templates/store.ts';

let database: Database;

useTestDatabase({ isForEachTest: true, connectionsMax: 1 }, (opened) => {
  database = opened.database;
});
const run = (text: string) => database.rows(unpreparedStatement(text));

beforeEach(() => run("set plan_cache_mode = 'force_generic_plan'"));

const organizationId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

async function fill(): Promise<void> {
  await run(
    `insert into organizations (id, name, created_at, updated_at)
     select gen_random_uuid(), 'O', now(), now() from generate_series(1, 5000)`,
  );
  await run(
    `insert into domains (organization_id, id, name, status, verified_at, created_at, updated_at)
     select id, gen_random_uuid(), 'd' || n || '.example', 'verified', now(), now(), now()
     from (select id, row_number() over () as n from organizations) o`,
  );
  await run(
    `insert into templates (organization_id, id, name, name_key, text, variables, created_at, updated_at)
     select id, gen_random_uuid(), 'T', 't', 'text', '{}', now(), now() from organizations`,
  );
  await run(
    `insert into quota_usage (organization_id, channel, month, shard, used)
     select id, 'email', '2026-11-01', shard, 1 from organizations, generate_series(0, 4) as shard`,
  );
  await run(
    `insert into idempotency_keys (organization_id, endpoint, key, fingerprint, status_code, response, created_at)
     select id, 'POST /email/send', 'k', sha256('x'), 202, '{}', now() from organizations`,
  );
}

async function planOf({ statement: { text }, values }: Pick<Bound<unknown>, 'statement' | 'values'>) {
  const rows = await database.asOrganizationsByIndex([organizationId], (transaction) =>
    transaction.rows(unpreparedStatement<{ 'QUERY PLAN': string }>(`explain (generic_plan) ${text}`)),
  );
  expect(values.length).toBeGreaterThan(0);
  return rows.map((row) => row['QUERY PLAN']).join('\n');
}

const states: [string, () => Promise<unknown>][] = [
  ['new and never analyzed', () => Promise.resolve()],
  ['analyzed while they were empty', () => run('analyze')],
  ['filled and never analyzed', fill],
  ['filled after they were analyzed', () => run('analyze').then(fill)],
  ['filled and analyzed', () => fill().then(() => run('analyze'))],
];

const senderNames = 'senders_organization_id_name_key';

test.each(states)('tables that are %s', async (_state, prepare) => {
  await prepare();
  const key = { organizationId, endpoint: 'POST /email/send', key: 'k', fingerprint: Buffer.alloc(32) };
  const plans = await Promise.all(
    [
      { statement: messageChannels.email.acceptance!.statement, values: [0] },
      { statement: messageChannels.sms.acceptance!.statement, values: [0] },
      claimKeysAtOnce([key], { expiredBefore: new Date(0) })[1]!,
      findContents([{ organizationId, id: organizationId }]),
    ].map(planOf),
  );
  const indexes = plans.map((plan) =>
    [...plan.matchAll(/(?:Scan using|Bitmap Index Scan on) (\w+)/g)].map(([, name]) => name),
  );
  // Of the two indexes of the names of senders, either leads to those of one organization, which are few.
  expect(
    indexes.map((names) => names.toSorted().map((name) => name?.replace('senders_name', senderNames))),
  ).toEqual([
    ['domains_organization_id_name_key', 'organizations_pkey', 'quota_usage_pkey', 'templates_pkey'],
    ['organizations_pkey', 'quota_usage_pkey', senderNames, 'templates_pkey'],
    ['idempotency_keys_pkey'],
    ['templates_pkey'],
  ]);
  for (const plan of plans) expect(plan).not.toMatch(/Seq Scan|Hash Join|Merge Join/);
});
