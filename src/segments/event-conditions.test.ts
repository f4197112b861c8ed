/** Conditions on events against their meaning, written once more in plain words, for everybody and for a few. */
import fc from 'fast-check';
import { beforeAll, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { createOrganization } from '../accounts/accounts.ts';
import { createDefinition } from '../events/definitions.ts';
import { dateOf, systemClock } from '../platform/clock.ts';
import { createIds, lowestIdAt } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { compilePredicate } from './compile.ts';
import { readConditions } from './segments.ts';

let database: Database;
let organizationId: string;
let theirs: string;
const newId = createIds(systemClock);
const dayMs = 86_400_000;
const atMs = systemClock.nowMs();

useTestDatabase({ connectionsMax: 1 }, (opened) => {
  database = opened.database;
});

const run = <Row>(text: string, values: readonly unknown[]) =>
  database.rows(unpreparedStatement<Row>(text), values);

type Happened = { person: number; kind: 'order' | 'visit'; daysAgo: number; total: number | string | null };

const people = 12;
/** Nobody knows of an event of the last one. */
const aHappening: fc.Arbitrary<Happened> = fc.record({
  person: fc.nat(people - 2),
  kind: fc.constantFrom('order', 'visit'),
  daysAgo: fc.constantFrom(0.5, 2.5, 6.5, 7.5, 40),
  total: fc.constantFrom(null, 'ten', 5, 10, 10.5, 20),
});

const operators = ['eq', 'neq', 'gt', 'gte', 'lt', 'lte'] as const;
const holds = {
  eq: (a: number, b: number) => a === b,
  neq: (a: number, b: number) => a !== b,
  gt: (a: number, b: number) => a > b,
  gte: (a: number, b: number) => a >= b,
  lt: (a: number, b: number) => a < b,
  lte: (a: number, b: number) => a <= b,
};

const aCondition = fc.record({
  event: fc.constantFrom('order' as const, 'visit' as const),
  count: fc.option(fc.record({ operator: fc.constantFrom(...operators), value: fc.nat(4) })),
  withinDays: fc.option(fc.constantFrom(1, 3, 7, 30)),
  where: fc.option(
    fc.record({
      operator: fc.constantFrom(...operators, 'is_set' as const),
      value: fc.constantFrom(5, 10, 15),
    }),
  ),
});
type Given = typeof aCondition extends fc.Arbitrary<infer Value> ? Value : never;

function toCondition({ event, count, withinDays, where }: Given): object {
  return {
    type: 'event',
    event,
    ...(count !== null && { count }),
    ...(withinDays !== null && { within: { value: withinDays, unit: 'day' } }),
    ...(where !== null && {
      where: [
        where.operator === 'is_set' ? { field: 'total', operator: 'is_set' } : { field: 'total', ...where },
      ],
    }),
  };
}

/** A value of another type is none; what is negative holds for none. */
function counts({ event, withinDays, where }: Given, one: Happened): boolean {
  if (one.kind !== event) return false;
  if (withinDays !== null && one.daysAgo >= withinDays) return false;
  if (where === null) return true;
  const total = typeof one.total === 'number' ? one.total : null;
  if (where.operator === 'is_set') return total !== null;
  return total === null ? where.operator === 'neq' : holds[where.operator](total, where.value);
}

function isMeant(given: Given, events: readonly Happened[]): boolean {
  const { operator, value } = given.count ?? { operator: 'gte' as const, value: 1 };
  return holds[operator](events.filter((one) => counts(given, one)).length, value);
}

beforeAll(async () => {
  for (const [index, type] of (['number', 'string'] as const).entries()) {
    const { id } = await createOrganization({ database, clock: systemClock, newId }, `Acme ${index}`);
    for (const name of ['order', 'visit']) {
      const tools = { database, clock: systemClock, newId, findReadFields: () => Promise.resolve([]) };
      await createDefinition(tools, id, { name, schema: { fields: [{ name: 'total', type }] } });
    }
    if (type === 'number') organizationId = id;
    else theirs = id;
  }
});

/** New contacts of the organization with these events; those of another one did all of it, and more. */
async function store(happened: readonly Happened[]): Promise<string[]> {
  const ids = Array.from({ length: people }, () => newId());
  const other = ids.map(() => newId());
  const rowOf = (organization: string, contacts: readonly string[], one: Happened) => ({
    organization_id: organization,
    contact_id: contacts[one.person]!,
    id: lowestIdAt(atMs - one.daysAgo * dayMs).slice(0, 14) + newId().slice(14),
    definition_number: one.kind === 'order' ? 1 : 2,
    occurred_at: new Date(atMs - one.daysAgo * dayMs).toISOString(),
    payload: one.total === null ? {} : { total: one.total },
  });
  const rows = happened.flatMap((one) => [rowOf(organizationId, ids, one), rowOf(theirs, other, one)]);
  for (const [organization, contacts] of [
    [organizationId, ids],
    [theirs, other],
  ] as const)
    await run(
      `insert into contacts (organization_id, id, external_id, created_at, updated_at)
       select $1, id, id::text, now(), now() from unnest($2::uuid[]) id`,
      [organization, contacts],
    );
  await run(
    `insert into events (organization_id, contact_id, id, definition_number, occurred_at, payload)
     select organization_id, contact_id, id, definition_number, occurred_at, payload
     from jsonb_to_recordset($1::jsonb) as given (
       organization_id uuid, contact_id uuid, id uuid, definition_number integer, occurred_at timestamptz, payload jsonb
     )`,
    [JSON.stringify(rows)],
  );
  return ids;
}

const aMatch = fc.constantFrom(...(['any', 'all', 'none'] as const));
const holdsOf = {
  any: (truths: readonly boolean[]) => truths.includes(true),
  all: (truths: readonly boolean[]) => !truths.includes(false),
  none: (truths: readonly boolean[]) => !truths.includes(true),
};

/** Those of the contacts for whom it holds, as all contacts are asked and as a few are. */
async function findBoth(condition: object, ids: readonly string[]): Promise<string[][]> {
  const reading = await readConditions(database, organizationId, condition);
  if (!reading.ok) throw new Error(reading.issues.join());
  const found = [];
  for (const isPartial of [false, true]) {
    const compiled = compilePredicate(reading.condition, [organizationId, ids], dateOf(atMs), { isPartial });
    const rows = await run<{ id: string }>(
      `select contact.id
       from contacts contact ${compiled.joins}
       where contact.organization_id = $1 and contact.id = any ($2::uuid[]) and ${compiled.text}
       order by 1`,
      compiled.values,
    );
    found.push(rows.map(({ id }) => id));
  }
  return found;
}

test('whoever is asked for is found, nobody else, among all contacts and among a few', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(aHappening, { maxLength: 60 }),
      fc.array(aCondition, { minLength: 1, maxLength: 8 }),
      aMatch,
      async (happened, conditions, match) => {
        const ids = await store(happened);
        const truths = ids.map((_id, person) => {
          const own = happened.filter((one) => one.person === person);
          return conditions.map((given) => isMeant(given, own));
        });
        for (const [index, given] of conditions.entries()) {
          const expected = ids.filter((_id, person) => truths[person]![index]).sort();
          expect({ given, found: await findBoth(toCondition(given), ids) }).toEqual({
            given,
            found: [expected, expected],
          });
        }
        // Several that ask about the same events are answered together.
        const group = { type: 'group', match, conditions: conditions.map(toCondition) };
        const expected = ids.filter((_id, person) => holdsOf[match](truths[person]!)).sort();
        expect({ group, found: await findBoth(group, ids) }).toEqual({ group, found: [expected, expected] });
      },
    ),
    { numRuns: 40 },
  );
});

const order = { type: 'event', event: 'order' };
const within = (value: number) => ({ ...order, within: { value, unit: 'day' } });
const never = { count: { operator: 'eq', value: 0 } };
const lessThan = (value: number) => ({ ...order, count: { operator: 'lt', value } });
const large = { ...order, where: [{ field: 'total', operator: 'gt', value: 10 }] };

test.each([
  ['any', [within(30), within(7)], ['long ago', 'lately', 'long ago for much']],
  ['any', [within(7), within(30)], ['long ago', 'lately', 'long ago for much']],
  ['all', [within(30), { ...within(7), ...never }], ['long ago', 'long ago for much']],
  ['any', [large, within(3)], ['lately', 'long ago for much']],
  ['all', [large, within(30)], ['long ago for much']],
  ['all', [lessThan(2), lessThan(3)], ['long ago', 'lately', 'long ago for much', 'never']],
] as const)(
  'two conditions about the same events have periods and values of their own: %s of %j',
  async (match, conditions, expected) => {
    const ids = await store([
      { person: 0, kind: 'order', daysAgo: 20, total: 5 },
      { person: 1, kind: 'order', daysAgo: 2.5, total: 5 },
      { person: 2, kind: 'order', daysAgo: 20, total: 20 },
    ]);
    const named = new Map(
      ['long ago', 'lately', 'long ago for much', 'never'].map((name, at) => [ids[at], name]),
    );
    const found = await findBoth({ type: 'group', match, conditions }, ids.slice(0, 4));
    const names = found.map((each) => each.map((id) => named.get(id)).sort());
    expect(names).toEqual([[...expected].sort(), [...expected].sort()]);
  },
);
