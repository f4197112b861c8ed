import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { clientConfigOf, useTestDatabase } from '../../../test/support/test-database.ts';
import { createIds } from '../ids.ts';
import {
  type DatabaseAddress,
  DatabaseUnavailableError,
  openDatabase,
  sqlState,
  statement,
  uniqueViolation,
  unpreparedStatement,
} from './database.ts';

let address: DatabaseAddress;
let observer: pg.Client;

const newId = createIds(createManualClock());

useTestDatabase({}, (opened) => {
  address = opened.address;
});
beforeAll(async () => {
  observer = new pg.Client(clientConfigOf(address));
  await observer.connect();
  await observer.query(
    'create table marks (text text primary key, twin text unique deferrable initially deferred)',
  );
});

afterAll(async () => {
  await observer.end();
});

const insertMark = statement('test_insert_mark', 'insert into marks (text) values ($1)');
const insertTwin = statement('test_insert_twin', 'insert into marks (text, twin) values ($1, $2)');
const selectMarks = statement<{ text: string }>('test_select_marks', 'select text from marks order by text');
const countMarks = statement<{ count: number }>('test_count_marks', 'select count(*) as count from marks');

async function takeMarks(): Promise<string[]> {
  const { rows } = await observer.query<{ text: string }>('delete from marks returning text');
  return rows.map(({ text }) => text).toSorted();
}

function openSingle(options: { usePreparedStatements?: boolean; applicationName?: string } = {}) {
  return openDatabase({ address, connectionsMax: 1, ...options });
}

/** Resolves once the only connection of that name waits for a lock. */
async function whenWaiting(applicationName: string): Promise<void> {
  for (let isWaiting = false; !isWaiting;) {
    const { rows } = await observer.query(
      "select from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock'",
      [applicationName],
    );
    isWaiting = rows.length === 1;
  }
}

test('statements that go together are kept together, each sees those before it, and each has its rows', async () => {
  for (const usePreparedStatements of [true, false]) {
    const single = openSingle({ usePreparedStatements });
    // Twice, since the second time they are prepared already.
    for (const text of ['one', 'two']) {
      const results = await single.together(null, [
        { statement: countMarks, values: [] },
        { statement: insertMark, values: [text] },
        { statement: selectMarks, values: [] },
        { statement: insertMark, values: [`${text} more`] },
        { statement: countMarks, values: [] },
      ]);
      expect(results).toEqual([[{ count: 0 }], [], [{ text }], [], [{ count: 2 }]]);
      expect(await takeMarks()).toEqual([text, `${text} more`]);
    }
    await single.close();
  }
});

test('if one of them fails nothing is kept, the error is its own, and all can be run on the connection again', async () => {
  const single = openSingle();
  const insertBoth = (first: string, second: string) =>
    single.together(null, [
      { statement: insertMark, values: [first] },
      { statement: insertTwin, values: [second, second] },
      { statement: selectMarks, values: [] },
    ]);
  // Before any of them was prepared, after all were, and with the failure at another place.
  await expect(insertBoth('same', 'same')).rejects.toSatisfy((cause) => sqlState(cause) === uniqueViolation);
  expect(await takeMarks()).toEqual([]);
  expect(await insertBoth('one', 'other')).toEqual([[], [], [{ text: 'one' }, { text: 'other' }]]);
  await expect(insertBoth('one', 'third')).rejects.toSatisfy((cause) => sqlState(cause) === uniqueViolation);
  expect(await insertBoth('third', 'fourth')).toHaveLength(3);
  expect(await single.transaction((transaction) => transaction.rows(countMarks))).toEqual([{ count: 4 }]);
  expect(await takeMarks()).toEqual(['fourth', 'one', 'other', 'third']);
  await single.close();
});

test('what PostgreSQL refuses only when it commits is an error, and not kept', async () => {
  const single = openSingle();
  const twins = single.together(null, [
    { statement: insertTwin, values: ['one', 'the same'] },
    { statement: insertTwin, values: ['other', 'the same'] },
  ]);
  await expect(twins).rejects.toSatisfy((cause) => sqlState(cause) === uniqueViolation);
  expect(await takeMarks()).toEqual([]);
  expect(await single.rows(countMarks)).toEqual([{ count: 0 }]);
  await single.close();
});

test('a statement after one that waited for a lock sees what its holder has committed', async () => {
  const single = openSingle({ applicationName: 'waiting' });
  await observer.query('select pg_advisory_lock(1)');
  const seen = single.together<[unknown, { count: number }]>(null, [
    { statement: unpreparedStatement('select pg_advisory_xact_lock(1)'), values: [] },
    { statement: countMarks, values: [] },
  ]);
  await whenWaiting('waiting');
  await observer.query("insert into marks (text) values ('late')");
  await observer.query('select pg_advisory_unlock(1)');
  expect((await seen)[1]).toEqual([{ count: 1 }]);
  await takeMarks();
  await single.close();
});

test('inside the wall they see the rows of their organizations alone, and role and plans end with them', async () => {
  const single = openSingle();
  const [mine, other] = [newId(), newId()];
  for (const id of [mine, other]) {
    await observer.query("insert into quota_usage values ($1, 'email', '2026-11-01', 1, 1)", [id]);
  }
  const settings = unpreparedStatement<{ role: string; ids: string | null; plans: string }>(
    `select current_user::text as role, nullif(current_setting('postillion.organization_ids', true), '') as ids,
       current_setting('plan_cache_mode') || current_setting('enable_seqscan') as plans`,
  );
  const [before] = await single.rows(settings);
  const [inside, rows] = await single.together<[object, { organization_id: string }]>(
    [mine],
    [
      { statement: settings, values: [] },
      { statement: unpreparedStatement('select organization_id from quota_usage'), values: [] },
    ],
  );
  expect(inside).toEqual([{ role: 'postillion_tenant', ids: mine, plans: 'force_generic_planoff' }]);
  expect(rows).toEqual([{ organization_id: mine }]);
  expect(await single.rows(settings)).toEqual([before]);
  const writing = single.together(
    [mine],
    [
      {
        statement: unpreparedStatement("insert into quota_usage values ($1, 'sms', '2026-11-01', 1, 1)"),
        values: [other],
      },
    ],
  );
  await expect(writing).rejects.toThrow('row-level security');
  expect(await single.rows(settings)).toEqual([before]);
  await observer.query('delete from quota_usage');
  await single.close();
});

test('a backend that is killed meanwhile is an unavailable database, and the next connection serves', async () => {
  const single = openSingle({ applicationName: 'killed' });
  await observer.query('select pg_advisory_lock(2)');
  const killed = expect(
    single.together(null, [
      { statement: insertMark, values: ['lost'] },
      { statement: unpreparedStatement('select pg_advisory_xact_lock(2)'), values: [] },
    ]),
  ).rejects.toBeInstanceOf(DatabaseUnavailableError);
  await whenWaiting('killed');
  await observer.query(
    "select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = 'killed'",
  );
  await observer.query('select pg_advisory_unlock(2)');
  await killed;
  expect(await takeMarks()).toEqual([]);
  expect(await single.together(null, [{ statement: countMarks, values: [] }])).toEqual([[{ count: 0 }]]);
  await single.close();
});
