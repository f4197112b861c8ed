/** What becomes of sends while the clock of the machine, or of the database, is months ahead, and when it is put back. */
import { afterEach, expect, test } from 'vitest';
import { readConfig } from '../../src/config.ts';
import { type Clock, now, systemClock } from '../../src/platform/clock.ts';
import { lowestIdAt } from '../../src/platform/ids.ts';
import { silentLog } from '../../src/platform/log.ts';
import { type AnchoredClock, startAnchoredClock } from '../../src/platform/postgres/anchored-clock.ts';
import { type Database, openDatabase, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { createPartitions, findMissingPartitions } from '../../src/platform/postgres/partitions.ts';
import { bringForward } from '../../src/messages/messages.ts';
import { messageChannels } from '../../src/roles/channels.ts';
import { openInstallation } from '../../src/installation/opening.ts';
import { startWorker } from '../../src/roles/worker.ts';
import { createShiftedClock, eventually, queueOf, rowsOf, send, settled } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { createTestDatabase, databaseUrlOf, type TestDatabase } from '../support/test-database.ts';
import { watchTenantWall } from '../support/wall-watch.ts';

const monthsMs = 5 * 31 * 24 * 60 * 60_000;

const ends: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

type World = { testDatabase: TestDatabase; database: Database; clock: AnchoredClock };

/** A database whose clock can be set, as that of its machine can, and the clock of an installation that uses it. */
async function startWorld(base: Clock): Promise<World> {
  const testDatabase = await createTestDatabase();
  ends.push(testDatabase.drop);
  const setup = openDatabase({ address: testDatabase.address, connectionsMax: 1 });
  for (const text of [
    'create table clock_shift (ms double precision)',
    'insert into clock_shift values (0)',
    `create function clock_timestamp() returns timestamptz language sql volatile as
     $$ select pg_catalog.clock_timestamp() + make_interval(secs => ms / 1000) from public.clock_shift $$`,
    // Names in schemas before pg_catalog are found first.
    `do $$ begin execute format('alter database %I set search_path = public, pg_catalog', current_database()); end $$`,
  ])
    await setup.rows(unpreparedStatement(text));
  await setup.close();
  const database = openDatabase({ address: testDatabase.address, connectionsMax: 2 });
  ends.push(database.close);
  const clock = await startAnchoredClock({
    database,
    base,
    log: silentLog,
    makeRoom: (at) => createPartitions(database, at),
  });
  ends.push(clock.stop);
  return { testDatabase, database, clock };
}

async function setDatabaseClock({ database }: World, aheadMs: number): Promise<void> {
  await database.rows(unpreparedStatement('update clock_shift set ms = $1'), [aheadMs]);
}

async function startServer(world: World, worker: boolean, clock: Clock = world.clock): Promise<TestServer> {
  const server = await startTestServer({
    database: world.testDatabase.address,
    clock,
    worker,
    madeByHand: ['claims'],
  });
  ends.push(server.stop);
  return server;
}

function aMinuteFromNow(): number {
  return systemClock.nowMs() + 60_000;
}

async function latestIn(server: TestServer, table: string, column: string): Promise<number> {
  const [row] = await rowsOf<{ latest: Date | null }>(
    server,
    `select max(${column}) as latest from ${table}`,
  );
  return row?.latest?.getTime() ?? 0;
}

test('a machine whose wall clock jumps ahead by five months and back accepts and delivers as if nothing were', async () => {
  let aheadMs = 0;
  const base: Clock = { ...systemClock, nowMs: () => systemClock.nowMs() + aheadMs };
  const world = await startWorld(base);
  const server = await startServer(world, true);
  const other = await createSender(server.installation, 'other.test');
  const ids: string[] = [];
  for (const jumpMs of [0, monthsMs, 2 * monthsMs, 0]) {
    aheadMs = jumpMs;
    ids.push(await send(server));
    await world.clock.exchange();
    ids.push(await send(server), await send(server, { from: 'hello@other.test' }, other));
  }
  for (const [index, id] of ids.entries()) {
    const record = await settled(server, id, index % 3 === 2 ? other : undefined);
    expect(record.to[0]).toMatchObject({ status: 'delivered' });
  }
  expect(await latestIn(server, 'messages', 'created_at')).toBeLessThan(aMinuteFromNow());
  expect(ids.toSorted()).toEqual(ids);
  const ahead = await rowsOf(server, "select from pg_class where relname ~ '_20[0-9]{2}_[0-9]{2}$'");
  const partitioned = await rowsOf(server, 'select from pg_partitioned_table');
  expect(ahead.length).toBeLessThanOrEqual(4 * partitioned.length);
});

test('the clock is right from the start, also on a machine whose own is five months ahead', async () => {
  const world = await startWorld({ ...systemClock, nowMs: () => systemClock.nowMs() + monthsMs });
  expect(Math.abs(world.clock.nowMs() - systemClock.nowMs())).toBeLessThan(60_000);
});

test('the program goes by the clock of the database from the start, and has partitions for its time', async () => {
  const world = await startWorld(systemClock);
  await setDatabaseClock(world, monthsMs);
  const environment = { POSTILLION_SECRET: 'a secret of the tests, and of nothing else' };
  const config = { ...readConfig(environment), databaseUrl: databaseUrlOf(world.testDatabase.address) };
  const installation = await openInstallation(config, silentLog);
  ends.push(installation.close);
  const { clock, newId, database } = installation;
  expect(clock.nowMs()).toBeGreaterThan(systemClock.nowMs() + monthsMs - 60_000);
  expect(newId() > lowestIdAt(systemClock.nowMs() + monthsMs - 60_000)).toBe(true);
  expect(await findMissingPartitions(database, now(clock), 'month')).toEqual([]);
});

test('a clock of the database that jumps ahead by five months is followed once there is room, and followed back', async () => {
  const world = await startWorld(systemClock);
  const server = await startServer(world, true);
  await settled(server, await send(server));
  await setDatabaseClock(world, monthsMs);
  await settled(server, await send(server));
  await world.clock.exchange();
  expect(world.clock.nowMs()).toBeGreaterThan(systemClock.nowMs() + monthsMs - 60_000);
  await settled(server, await send(server));
  await setDatabaseClock(world, 0);
  await world.clock.exchange();
  expect(world.clock.nowMs()).toBeLessThan(aMinuteFromNow());
  const id = await send(server);
  expect((await settled(server, id)).to[0]).toMatchObject({ status: 'delivered' });
});

test('a time without room is not adopted until room can be made', async () => {
  const world = await startWorld(systemClock);
  await world.database.rows(unpreparedStatement('alter procedure create_partitions rename to elsewhere'));
  await setDatabaseClock(world, monthsMs);
  await expect(world.clock.exchange()).rejects.toThrow('create_partitions');
  expect(world.clock.nowMs()).toBeLessThan(aMinuteFromNow());
  await world.database.rows(unpreparedStatement('alter procedure elsewhere rename to create_partitions'));
  await world.clock.exchange();
  expect(world.clock.nowMs()).toBeGreaterThan(systemClock.nowMs() + monthsMs - 60_000);
});

test('what was accepted while the clock of the database was ahead is delivered after it was put back', async () => {
  const base = createShiftedClock();
  const world = await startWorld(base);
  const accepting = await startServer(world, false);
  await setDatabaseClock(world, monthsMs);
  await world.clock.exchange();
  const id = await send(accepting);
  const [job] = await queueOf(accepting, id);
  expect(job!.due_at.getTime()).toBeGreaterThan(aMinuteFromNow());
  await setDatabaseClock(world, 0);
  await world.clock.exchange();
  const watch = await watchTenantWall(accepting.installation.database);
  const { stop } = await startWorker({ ...accepting.installation, database: watch.database });
  ends.push(stop);
  base.putForward(30_000);
  expect((await settled(accepting, id)).to[0]).toMatchObject({ status: 'delivered' });
  expect(watch.breaches()).toEqual([]);
});

test('of the jobs that wait, only those that a clock ahead of time put off are brought forward', async () => {
  const world = await startWorld(systemClock);
  const server = await startServer(world, false);
  await rowsOf(
    server,
    `insert into delivery_queue
       (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes, claimed_by, claim_number)
     select organization.id, gen_random_uuid(), n, 'email', 1, now() + due, now() + accepted, 1, worker, worker
     from (values (gen_random_uuid()), (gen_random_uuid())) as organization (id)
     cross join (values
       (interval '2 hours', interval '2 hours', null::bigint, 3000),
       (interval '5 months', interval '0', null, 3),
       (interval '5 months', interval '5 months', 7, 5),
       (interval '7 hours', interval '-1 hour', null, 7)
     ) as kind (due, accepted, worker, rows)
     cross join lateral generate_series(1, rows) as n`,
  );
  await rowsOf(
    server,
    `with texts as (
       insert into sms_events (id, event, due_at)
       select gen_random_uuid(), '{}', now() + pause from unnest(array[interval '6 hours', '5 months']) as pause
     ), told as (
       insert into chat_app_events (id, event, due_at)
       select gen_random_uuid(), json_build_object('organizationId', gen_random_uuid()), now() + pause
       from unnest(array[interval '6 hours', '5 months']) as pause
     )
     insert into provider_events (id, channel, provider, report, due_at)
     select gen_random_uuid(), channel, 'sandbox', '{}', now() + pause
     from unnest(array['email', 'sms']) as channel
     cross join unnest(array[interval '6 hours', '5 months']) as pause`,
  );
  await bringForward({ ...server.installation, channels: messageChannels });
  const waiting = await rowsOf(
    server,
    `select count(*) filter (where due_at <= clock_timestamp() and accepted_at <= clock_timestamp()) as due,
       count(*) filter (where due_at > clock_timestamp() and claimed_by is null) as deferred,
       count(claimed_by) as claimed,
       (select count(*) from sms_events where due_at <= clock_timestamp()) as texts_due,
       (select count(*) from sms_events) as texts,
       (select count(*) from chat_app_events where due_at <= clock_timestamp()) as told_due,
       (select count(*) from chat_app_events) as told,
       (select count(*) from provider_events where due_at <= clock_timestamp()) as reports_due,
       (select count(*) from provider_events) as reports
     from delivery_queue`,
  );
  expect(waiting).toEqual([
    {
      due: 2 * 3003,
      deferred: 2 * 7,
      claimed: 2 * 5,
      texts_due: 1,
      texts: 2,
      told_due: 1,
      told: 2,
      reports_due: 2,
      reports: 4,
    },
  ]);
});

test('five jobs, five texts that came in and five reports are brought forward two at a time, of any organization', async () => {
  const world = await startWorld(systemClock);
  const server = await startServer(world, false);
  await rowsOf(
    server,
    `insert into delivery_queue
       (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
     select gen_random_uuid(), gen_random_uuid(), n, 'email', 1, now() + interval '5 months', now(), 1
     from generate_series(1, 5) as n`,
  );
  await rowsOf(
    server,
    `with texts as (
       insert into sms_events (id, event, due_at)
       select gen_random_uuid(), '{}', now() + interval '5 months' from generate_series(1, 5)
     ), told as (
       insert into chat_app_events (id, event, due_at)
       select gen_random_uuid(), json_build_object('organizationId', gen_random_uuid()), now() + interval '5 months'
       from generate_series(1, 5)
     )
     insert into provider_events (id, channel, provider, report, due_at)
     select gen_random_uuid(), 'email', 'sandbox', '{}', now() + interval '5 months' from generate_series(1, 5)`,
  );
  await bringForward({ ...server.installation, channels: messageChannels, rowsMax: 2 });
  for (const table of ['delivery_queue', 'sms_events', 'chat_app_events', 'provider_events'])
    expect(await rowsOf(server, `select from ${table} where due_at > clock_timestamp()`)).toEqual([]);
});

test('the queue is read by its key, a limited number of rows at a time, whatever the statistics of the table', async () => {
  const world = await startWorld(systemClock);
  const server = await startServer(world, false);
  const { database } = server.installation;
  await rowsOf(
    server,
    `insert into delivery_queue
       (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
     select '01930000-0000-7000-8000-000000000001', lpad(to_hex(n), 32, '0')::uuid, 0, 'email', 0, now() + accepted,
       now() + accepted, 1
     from generate_series(1, 10001) as n
     cross join lateral (select case when n % 5000 = 0 then interval '5 months' else '0' end as accepted) as kind`,
  );
  const plans: string[] = [];
  await bringForward({
    ...server.installation,
    channels: messageChannels,
    database: {
      ...database,
      transactionByIndex: (work) =>
        database.transactionByIndex((transaction) =>
          work({
            ...transaction,
            rows: async (given, values = []) => {
              const plan = unpreparedStatement<{ 'QUERY PLAN': string }>(`explain ${given.text}`);
              plans.push((await transaction.rows(plan, values)).map((row) => row['QUERY PLAN']).join('\n'));
              return transaction.rows(given, values);
            },
          }),
        ),
    },
  });
  // Three with jobs, of which two had some to bring forward, and one that finds nothing more.
  const plansOfQueue = plans.filter((plan) => plan.includes('delivery_queue'));
  expect(plansOfQueue).toHaveLength(6);
  for (const plan of plansOfQueue) {
    expect(plan).toMatch(/Index Scan using delivery_queue_pkey on delivery_queue/);
    expect(plan).not.toMatch(/Sort|Seq Scan on|Materialize|delivery_queue_due/);
  }
  expect(await rowsOf(server, 'select from delivery_queue where due_at > clock_timestamp()')).toEqual([]);
});

test('a send that finds no partition makes it', async () => {
  const world = await startWorld(systemClock);
  const server = await startServer(world, true);
  for (const table of ['messages', 'recipients', 'message_contents']) {
    const partitions = await rowsOf<{ name: string }>(
      server,
      `select inhrelid::regclass::text as name from pg_inherits where inhparent = '${table}'::regclass`,
    );
    for (const { name } of partitions) await rowsOf(server, `drop table ${name}`);
  }
  const ids = await Promise.all(Array.from({ length: 20 }, () => send(server)));
  for (const id of ids) expect((await settled(server, id)).to[0]).toMatchObject({ status: 'delivered' });
  expect(now(world.clock).getTime()).toBeLessThan(aMinuteFromNow());
  await eventually(
    () => rowsOf(server, 'select from delivery_queue'),
    (left) => left.length === 0,
  );
});
