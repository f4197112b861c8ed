/** Events are deleted when the plan of their organization says so: theirs alone, all of them, and none before. */
import { beforeEach, expect, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { createOrganization, updateOrganization } from '../accounts/accounts.ts';
import { dateOf } from '../platform/clock.ts';
import { createIds, lowestIdAt, type NewId } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { createDefinition } from './definitions.ts';
import { deleteOldEvents } from './retention.ts';

const hourMs = 3_600_000;
const dayMs = 24 * hourMs;

let database: Database;
let clock: ManualClock;
let newId: NewId;
/** In the middle of the first month for which there is a partition. */
let start: number;
let own: string;
let theirs: string;

useTestDatabase({ isForEachTest: true, hasNeighbour: true }, (opened) => {
  database = opened.database;
});
beforeEach(async () => {
  start = Date.parse(`${(await months())[0]!.replace('_', '-')}-15T12:00:00Z`);
  clock = createManualClock(start);
  newId = createIds(clock);
  [own, theirs] = [await anOrganization('Acme'), await anOrganization('Emca')];
});

const run = <Row>(text: string, values: readonly unknown[] = []) =>
  database.rows(unpreparedStatement<Row>(text), values);

/** With two kinds of events, of the same names and numbers as those of every other. */
async function anOrganization(name: string): Promise<string> {
  const { id } = await createOrganization({ database, clock, newId }, name);
  for (const event of ['order', 'visit']) {
    const tools = { database, clock, newId, findReadFields: () => Promise.resolve([]) };
    await createDefinition(tools, id, { name: event });
  }
  return id;
}

const keep = (organizationId: string, eventsKeptDays: number | null) =>
  updateOrganization({ database, clock }, organizationId, { eventsKeptDays });

/** Events of kinds in turns, which happened so long ago, and arrived then unless it is said otherwise. */
async function happened(
  organizationId: string,
  agoMs: readonly number[],
  { arrivedMs }: { arrivedMs?: number } = {},
): Promise<void> {
  const rows = agoMs.map((ms, index) => ({
    id: lowestIdAt(start - (arrivedMs ?? ms)).slice(0, 14) + newId().slice(14),
    contact_id: newId(),
    number: 1 + (index % 2),
    at: new Date(start - ms).toISOString(),
    ms,
  }));
  await run(
    `insert into events (organization_id, contact_id, id, definition_number, occurred_at, payload)
     select $1, contact_id, id, number, at, jsonb_build_object('ms', ms)
     from jsonb_to_recordset($2::jsonb)
       as given (id uuid, contact_id uuid, number integer, at timestamptz, ms bigint)`,
    [organizationId, JSON.stringify(rows)],
  );
}

/** How long ago the events happened that are still there. */
async function kept(organizationId: string): Promise<number[]> {
  const rows = await run<{ ms: string }>(
    `select payload ->> 'ms' as ms from events where organization_id = $1 order by occurred_at desc`,
    [organizationId],
  );
  return rows.map(({ ms }) => Number(ms));
}

const months = async () =>
  (
    await run<{ name: string }>(
      `select right(inhrelid::regclass::text, 7) as name from pg_inherits where inhparent = 'events'::regclass order by 1`,
    )
  ).map(({ name }) => name);

const tidy = (limits: { batchMax?: number; organizationsMax?: number } = {}, signal = never) =>
  deleteOldEvents({ database, clock, ...limits }, signal);
const never = new AbortController().signal;

/** Both sides of a limit of ten days, and of the hour by which the deletion stays behind. */
const around = [9 * dayMs, 10 * dayMs + hourMs, 10 * dayMs + hourMs + 1, 40 * dayMs];

test('what is older than the plan keeps it is deleted within an hour, of this organization alone', async () => {
  await happened(own, around);
  await happened(theirs, around);
  await keep(own, 10);
  await tidy();
  expect(await kept(own)).toEqual(around.slice(0, 2));
  expect(await kept(theirs)).toEqual(around);
});

test('an event that was imported goes by when it happened, not by when it came', async () => {
  await happened(own, [5 * dayMs, 11 * dayMs], { arrivedMs: dayMs });
  await keep(own, 10);
  await tidy();
  expect(await kept(own)).toEqual([5 * dayMs]);
});

test('events of a kind that is not defined any more are deleted too', async () => {
  await happened(own, around);
  await run('update event_definitions set deleted_at = now() where organization_id = $1 and number = 2', [
    own,
  ]);
  await keep(own, 1);
  await tidy();
  expect(await kept(own)).toEqual([]);
});

test('of more than fit into a batch and of more organizations than into a page, none is left', async () => {
  const others = [];
  for (let n = 0; n < 5; n += 1) others.push(await anOrganization(`Other ${n}`));
  for (const organizationId of [own, ...others]) {
    await happened(
      organizationId,
      Array.from({ length: 21 }, (_, n) => (20 + n) * dayMs),
    );
    await keep(organizationId, 10);
  }
  await tidy({ batchMax: 5, organizationsMax: 2 });
  for (const organizationId of [own, ...others]) expect(await kept(organizationId)).toEqual([]);
});

test('it ends between two batches where the process stops', async () => {
  await happened(
    own,
    Array.from({ length: 30 }, (_, n) => (20 + n) * dayMs),
  );
  await keep(own, 10);
  await tidy({ batchMax: 5 }, AbortSignal.abort());
  expect(await kept(own)).toHaveLength(30);
});

test('two nodes at once delete each event once, and all of them', async () => {
  await happened(
    own,
    Array.from({ length: 100 }, (_, n) => (20 + n) * dayMs),
  );
  await keep(own, 10);
  await Promise.all([tidy({ batchMax: 3 }), tidy({ batchMax: 3 })]);
  // Each leaves to the other what that one has locked.
  await tidy();
  expect(await kept(own)).toEqual([]);
});

test('a month is dropped once no organization keeps it any more', async () => {
  const [first, second, third, fourth] = await months();
  // In the fourth month, a little more than thirty days after the end of the second.
  clock.advance(Date.parse(`${fourth!.replace('_', '-')}-04T00:00:00Z`) - start);
  for (const organizationId of await organizations()) await keep(organizationId, 30);
  await keep(theirs, null);
  await happened(own, [0]);
  await happened(theirs, [0]);
  await tidy();
  expect(await months()).toContain(first);
  expect([await kept(own), await kept(theirs)]).toEqual([[], [0]]);
  await keep(theirs, 60);
  await tidy();
  expect(await months()).toEqual([second, third, fourth]);
  expect(await kept(theirs)).toEqual([]);
  await keep(theirs, 30);
  await tidy();
  expect(await months()).toEqual([third, fourth]);
});

test('a month is kept while an event that arrived in it may have happened after it', async () => {
  const [, second] = await months();
  const endMs = Date.parse(`${second!.replace('_', '-')}-01T00:00:00Z`);
  // It came two minutes before the end of the first month, and happened a minute after it.
  await happened(theirs, [start - endMs - 60_000], { arrivedMs: start - endMs + 120_000 });
  for (const organizationId of await organizations()) await keep(organizationId, 30);
  clock.advance(endMs + 30 * dayMs + hourMs - start);
  await tidy();
  expect(await kept(theirs)).toHaveLength(1);
  clock.advance(120_000);
  await tidy();
  expect(await kept(theirs)).toEqual([]);
});

const organizations = async () =>
  (await run<{ id: string }>('select id from organizations')).map(({ id }) => id);

test('what is noted of imports is forgotten when none of their events can be there', async () => {
  const note = (organizationId: string, digest: string, ms: number) =>
    run(
      `insert into event_imports (organization_id, digest, missing, imported_at)
       values ($1, sha256($2::bytea), '{}', $3)`,
      [organizationId, digest, dateOf(start - ms)],
    );
  for (const organizationId of [own, theirs]) {
    await note(organizationId, 'new', 9 * dayMs);
    for (let n = 0; n < 12; n += 1) await note(organizationId, `old ${n}`, 11 * dayMs);
  }
  await keep(own, 10);
  await tidy({ batchMax: 5 });
  const left = await run<{ organization_id: string; count: number }>(
    'select organization_id, count(*)::integer as count from event_imports where organization_id = any ($1) group by 1',
    [[own, theirs]],
  );
  expect(new Map(left.map((row) => [row.organization_id, row.count]))).toEqual(
    new Map([
      [own, 1],
      [theirs, 13],
    ]),
  );
});
