/**
 * When a few contacts are looked at, their events are found by the contact. Before, the events of a kind were read from
 * end to end for each of them, whenever the statistics of the table were old or missing: an event was seen by its
 * segments a quarter of a minute late, with 2,000 a second arriving.
 *
 * When all are looked at, events are read once. Before, each condition read them, and with such statistics so did each
 * contact: 2,000 contacts with ten events each took two seconds.
 */
import { afterEach, beforeEach, expect, test } from 'vitest';
import { createManualClock } from '../support/manual-clock.ts';
import { useTestDatabase } from '../support/test-database.ts';
import { createOrganization } from '../../src/accounts/accounts.ts';
import { createDefinition } from '../../src/events/definitions.ts';
import { now, systemClock } from '../../src/platform/clock.ts';
import { createIds } from '../../src/platform/ids.ts';
import { type Connection, type Database, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { compilePredicate } from '../../src/segments/compile.ts';
import { readConditions } from '../../src/segments/segments.ts';
import { joinByHash } from '../../src/segments/store.ts';

let database: Database;
let organizationId: string;

useTestDatabase({ isForEachTest: true, connectionsMax: 1 }, (opened) => {
  database = opened.database;
});
const run = <Row>(text: string, values: readonly unknown[] = []) =>
  database.rows(unpreparedStatement<Row>(text), values);

beforeEach(async () => {
  const tools = { database, clock: systemClock, newId: createIds(systemClock) };
  organizationId = (await createOrganization(tools, 'Acme')).id;
  const findReadFields = () => Promise.resolve([]);
  const schema = { fields: [{ name: 'total', type: 'number' as const }] };
  await createDefinition({ ...tools, findReadFields }, organizationId, { name: 'order', schema });
});
afterEach(() => run('reset all'));

/** Of one kind, by a twentieth as many contacts. */
async function addEvents(count: number): Promise<void> {
  await run(
    `with doer as (
       select n, gen_random_uuid() as id from generate_series(0, $2::integer / 20) n
     ), joined as (
       insert into contacts (organization_id, id, external_id, created_at, updated_at)
       select $1, id, id::text, now(), now()
       from doer
     )
     insert into events (organization_id, contact_id, id, definition_number, occurred_at, payload)
     select $1, doer.id,
       overlay(gen_random_uuid()::text placing left(lowest_id_at(now())::text, 13) from 1)::uuid, 1, now(), '{"total": 7}'
     from generate_series(1, $2::integer) number
     join doer on doer.n = number % ($2 / 20 + 1)`,
    [organizationId, count],
  );
}

const statistics: [string, () => Promise<unknown>][] = [
  ['empty and never analyzed', () => Promise.resolve()],
  ['never analyzed', () => addEvents(20_000)],
  ['analyzed while it was empty', () => run('analyze').then(() => addEvents(20_000))],
  [
    'analyzed with a few rows',
    () =>
      addEvents(40)
        .then(() => run('analyze'))
        .then(() => addEvents(20_000)),
  ],
  ['analyzed', () => addEvents(20_000).then(() => run('analyze'))],
];

const order = { type: 'event', event: 'order' };
const conditions: [string, object][] = [
  ['at least once', order],
  ['at least three times', { ...order, count: { operator: 'gte', value: 3 } }],
  ['exactly twice', { ...order, count: { operator: 'eq', value: 2 } }],
  ['never', { ...order, count: { operator: 'eq', value: 0 } }],
  ['lately', { ...order, within: { value: 7, unit: 'day' } }],
  ['with a value', { ...order, where: [{ field: 'total', operator: 'gt', value: 5 }] }],
];

type Plan = {
  'Node Type': string;
  'Index Name'?: string;
  'Index Cond'?: string;
  'Relation Name'?: string;
  Plans?: Plan[];
};
const flatten = (plan: Plan): Plan[] => [plan, ...(plan.Plans ?? []).flatMap(flatten)];

async function compile(condition: object, first: readonly unknown[], isPartial: boolean) {
  const reading = await readConditions(database, organizationId, condition);
  if (!reading.ok) throw new Error(reading.issues.join());
  const at = now(createManualClock(systemClock.nowMs()));
  return compilePredicate(reading.condition, first, at, { isPartial });
}

async function explain(transaction: Connection, text: string, values: readonly unknown[]): Promise<Plan[]> {
  const [explained] = await transaction.rows(
    unpreparedStatement<{ 'QUERY PLAN': [{ Plan: Plan }] }>(`explain (format json) ${text}`),
    values,
  );
  return flatten(explained!['QUERY PLAN'][0].Plan);
}

const isOfEvents = (plan: Plan) => plan['Relation Name']?.startsWith('events_') === true;

/** The scans of events in a plan for some contacts. */
async function scansOf(
  condition: object,
  ids: readonly string[],
  form: 'asOrganizations' | 'asOrganizationsByIndex',
): Promise<Plan[]> {
  const { text, values } = await compile(condition, [organizationId, ids], true);
  const plans = await database[form]([organizationId], (transaction) =>
    explain(
      transaction,
      `select contact.id
       from contacts contact
       where contact.organization_id = $1 and contact.id = any ($2::uuid[]) and ${text}`,
      values,
    ),
  );
  return plans.filter((plan) => plan['Index Name']?.startsWith('events_'));
}

test.each(statistics)(
  'who did it is found by the contact, in a table that was %s',
  async (_state, prepare) => {
    await prepare();
    const contacts = await run<{ id: string }>(
      'select id from contacts where organization_id = $1 limit 1000',
      [organizationId],
    );
    const ids = [organizationId, ...contacts.map(({ id }) => id)];
    for (const [name, condition] of conditions) {
      // As changes are followed; and as the planner likes, which may read a small table from end to end.
      const scans = await scansOf(condition, ids, 'asOrganizationsByIndex');
      expect([name, scans.length > 0]).toEqual([name, true]);
      for (const scan of [...scans, ...(await scansOf(condition, ids, 'asOrganizations'))]) {
        expect([name, scan['Index Name']]).toEqual([name, expect.stringMatching(/_pkey$/)]);
        expect([name, scan['Index Cond']]).toEqual([name, expect.stringContaining('contact_id')]);
      }
    }
  },
);

/** One of them, and several of one group, by whichever of them somebody is in. */
const forAll: [string, object][] = [
  ...conditions,
  ...(['any', 'all', 'none'] as const).map((match): [string, object] => [
    `${match} of them`,
    { type: 'group', match, conditions: conditions.map(([, condition]) => condition) },
  ]),
];

test.each(statistics)(
  'events are read once for all contacts and conditions, from a table that was %s',
  async (_state, prepare) => {
    await prepare();
    for (const [name, condition] of forAll) {
      const compiled = await compile(condition, [organizationId], false);
      const plans = await database.asOrganizations([organizationId], (transaction) =>
        joinByHash(transaction, compiled, () =>
          explain(
            transaction,
            `select contact.id
             from contacts contact ${compiled.joins}
             where contact.organization_id = $1 and ${compiled.text}`,
            compiled.values,
          ),
        ),
      );
      const read = plans.filter(isOfEvents).map((plan) => plan['Relation Name']);
      expect([name, read.length]).toEqual([name, new Set(read).size]);
      expect([name, read.length > 0]).toEqual([name, true]);
      const again = plans.filter(
        (plan) => plan['Node Type'] === 'Nested Loop' && flatten(plan).some(isOfEvents),
      );
      expect([name, again]).toEqual([name, []]);
    }
  },
);
