import { expect, test } from 'vitest';
import { acme, fillTables, listTables, rival } from '../../test/support/filled-tables.ts';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { storageKinds } from './schema.ts';
import { kindOfTable, measureStorage, measureStorageWhenDue } from './storage.ts';
import { listOrganizations } from './store.ts';

let database: Database;
useTestDatabase({ isForEachTest: true }, (opened) => {
  ({ database } = opened);
});

const start = Date.parse('2026-11-21T12:00:00.000Z');
const neverAborted = new AbortController().signal;

const run = <Row>(text: string, values: readonly unknown[] = []) =>
  database.rows(unpreparedStatement<Row>(text), values);

const owned = async () => (await listTables(database)).filter((table) => table.has_organization);

async function makeOrganizations(): Promise<void> {
  await run(
    `insert into organizations (id, name, created_at, updated_at)
     select id, 'Acme', now(), now() from unnest($1::uuid[]) id`,
    [[acme, rival]],
  );
}

const measure = (tools: { pagesAtOnce?: number } = {}) =>
  measureStorage({ database, clock: createManualClock(start), ...tools }, neverAborted);

async function usageOf(organizationId: string) {
  const organizations = await listOrganizations(database, { after: null, limit: 10 });
  return organizations.find(({ id }) => id === organizationId)?.storage ?? null;
}

test('each table that has rows of organizations is of a kind', async () => {
  const names = (await owned()).map(({ name }) => name);
  expect(Object.keys(kindOfTable).filter((name) => !names.includes(name))).toEqual([]);
  // What nobody would look for under the name of one of the others.
  expect(names.filter((name) => !(name in kindOfTable))).toEqual([
    'alert_settings',
    'alert_watches',
    'alerts',
    'api_keys',
    'chat_app_accounts',
    'chat_app_choices',
    'chat_app_limits',
    'chat_app_people',
    'chat_app_reached_counts',
    'chat_app_reached_people',
    'contact_erasures',
    'conversion_sums',
    'dead_device_tokens',
    'domains',
    'erasures',
    'event_imports',
    'holds',
    'idempotency_keys',
    'membership_counts',
    'push_credentials',
    'quota_usage',
    'reputation_counts',
    'sandbox_messages',
    'senders',
    'storage_usage',
    'webhook_cursors',
    'webhook_event_days',
    'webhook_interests',
    'webhook_positions',
    'webhooks',
  ]);
});

test('what is stored is what PostgreSQL says of whole rows, of every table and organization, by small steps and large ones', async () => {
  const tables = (await owned()).filter(({ name }) => name !== 'storage_usage');
  await fillTables(database, tables, 250);
  await run(
    `delete from contacts where organization_id = $1 and ctid = any (array(
    select ctid from contacts where organization_id = $1 limit 200))`,
    [rival],
  );
  const expectedOf = async (organizationId: string) => {
    const byKind: Record<string, number> = {};
    for (const { name } of tables) {
      const [row] = await run<{ bytes: number }>(
        `select coalesce(sum(pg_column_size(t.*)), 0) as bytes from ${name} t where organization_id = $1`,
        [organizationId],
      );
      const { [name]: kind = 'other' } = kindOfTable;
      if (kind === null) continue;
      byKind[kind] = (byKind[kind] ?? 0) + row!.bytes;
    }
    return byKind;
  };
  await measure();
  for (const organizationId of [acme, rival]) {
    const usage = (await usageOf(organizationId))!;
    const expected = await expectedOf(organizationId);
    for (const kind of storageKinds) {
      // Rows are aligned to 8 bytes, and have a bitmap of what is null.
      expect([kind, usage.bytesByKind[kind]! / expected[kind]!]).toEqual([
        kind,
        expect.toSatisfy((ratio: number) => ratio > 0.8 && ratio < 1.2),
      ]);
    }
    expect(usage.bytes).toBe(Object.values(usage.bytesByKind).reduce((sum, bytes) => sum + bytes, 0));
    expect(usage.measuredAt).toEqual(new Date(start));
  }
  expect((await usageOf(rival))!.bytesByKind.audience).toBeLessThan(
    (await usageOf(acme))!.bytesByKind.audience!,
  );

  const before = [await usageOf(acme), await usageOf(rival)];
  await run('delete from storage_usage');
  await measure({ pagesAtOnce: 1 });
  expect([await usageOf(acme), await usageOf(rival)]).toEqual(before);
});

test('large values count as they are stored, whole and compressed, and not any more once they are deleted', async () => {
  await makeOrganizations();
  const insert = (into: string, organizationId: string, value: string) =>
    run(
      `insert into ${into}
       select $1, (left(lowest_id_at(now())::text, 24) || lpad(to_hex(i), 12, '0'))::uuid, ${value}
       from generate_series(1, 5) i`,
      [organizationId],
    );
  // 320 kB each: what is sealed cannot be made smaller, and the text can.
  const noise = `(select string_agg(sha256((i || ' ' || n)::bytea), '') from generate_series(1, 10000) n)`;
  await insert('attachment_contents (organization_id, message_id, sealed, ordinal)', acme, `${noise}, 0`);
  await insert('attachment_contents (organization_id, message_id, sealed, ordinal)', rival, `${noise}, 0`);
  await run('create table texts (organization_id uuid, id uuid, text text)');
  await insert('texts (organization_id, id, text)', rival, `repeat('a', 320000)`);
  await measure();
  expect((await usageOf(acme))?.bytesByKind.attachments).toBeGreaterThanOrEqual(5 * 320_000);
  expect((await usageOf(acme))?.bytesByKind.attachments).toBeLessThan(5 * 320_000 + 1_000);
  expect((await usageOf(rival))?.bytesByKind.attachments).toBe(
    (await usageOf(acme))?.bytesByKind.attachments,
  );
  expect((await usageOf(rival))?.bytesByKind.other).toBeLessThan(5 * 10_000);
  await run('delete from attachment_contents where organization_id = $1', [acme]);
  await measure();
  expect(await usageOf(acme)).toEqual({
    bytes: expect.any(Number),
    bytesByKind: expect.anything(),
    measuredAt: new Date(start),
  });
  expect((await usageOf(acme))?.bytesByKind.attachments).toBeUndefined();
  expect((await usageOf(rival))?.bytesByKind.attachments).toBeGreaterThan(0);
});

test('an organization without anything has nothing, and one that is being deleted is not measured', async () => {
  await makeOrganizations();
  expect(await usageOf(acme)).toBeNull();
  await run(`update organizations set deletion = 'requested' where id = $1`, [acme]);
  await measure();
  expect(await usageOf(acme)).toBeNull();
  expect(await usageOf(rival)).toEqual({ bytes: 0, bytesByKind: {}, measuredAt: new Date(start) });
});

test('a partition that is dropped meanwhile counts as nothing', async () => {
  await makeOrganizations();
  await run('create table dropped (organization_id uuid)');
  await run('insert into dropped values ($1)', [acme]);
  const watched: Database = {
    ...database,
    rows: async (statement, values) => {
      if (statement.text.includes('from dropped')) await run('drop table if exists dropped');
      return database.rows(statement, values);
    },
  };
  const tools = { database: watched, clock: createManualClock(start) };
  expect(await measureStorage(tools, neverAborted)).toBe('measured');
  expect((await usageOf(acme))?.bytes).toBe(0);
});

test('what was found until it is interrupted is not kept', async () => {
  await makeOrganizations();
  const interruption = new AbortController();
  const watched: Database = {
    ...database,
    rows: (statement, values) => {
      if (statement.text.includes('sum(')) interruption.abort();
      return database.rows(statement, values);
    },
  };
  const tools = { database: watched, clock: createManualClock(start) };
  await run(
    `insert into holds (organization_id, held_kind, held_id, holder_kind, holder_id)
    values ($1, 'list', gen_random_uuid(), 'segment', gen_random_uuid())`,
    [acme],
  );
  await run(
    `insert into quota_usage (organization_id, channel, month, shard, used)
    values ($1, 'sms', '2026-11-01', 0, 1)`,
    [acme],
  );
  expect(await measureStorage(tools, interruption.signal)).toBe('interrupted');
  expect(await usageOf(acme)).toBeNull();
});

test('one node measures in an hour, at once after it was stopped, and another one an hour later if it dies meanwhile', async () => {
  await makeOrganizations();
  const clock = createManualClock(start);
  const measuredAt = async () => (await usageOf(acme))?.measuredAt.getTime() ?? null;
  await measureStorageWhenDue({ database, clock }, neverAborted);
  expect(await measuredAt()).toBe(start);
  clock.advance(49 * 60_000);
  await measureStorageWhenDue({ database, clock }, neverAborted);
  expect(await measuredAt()).toBe(start);
  clock.advance(60_000);
  await measureStorageWhenDue({ database, clock }, AbortSignal.abort());
  expect(await measuredAt()).toBe(start);
  await measureStorageWhenDue({ database, clock }, neverAborted);
  expect(await measuredAt()).toBe(start + 50 * 60_000);
  clock.advance(50 * 60_000);
  const died: Database = {
    ...database,
    rows: (statement, values) =>
      statement.text.includes('sum(')
        ? Promise.reject(new Error('killed'))
        : database.rows(statement, values),
  };
  await run(
    `insert into quota_usage (organization_id, channel, month, shard, used)
     values ($1, 'sms', '2026-11-01', 0, 1)`,
    [acme],
  );
  await expect(measureStorageWhenDue({ database: died, clock }, neverAborted)).rejects.toThrow('killed');
  clock.advance(59 * 60_000);
  await measureStorageWhenDue({ database, clock }, neverAborted);
  expect(await measuredAt()).toBe(start + 50 * 60_000);
  clock.advance(60_000);
  await measureStorageWhenDue({ database, clock }, neverAborted);
  expect(await measuredAt()).toBe(start + 160 * 60_000);
});
