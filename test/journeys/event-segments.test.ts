/** Segments that ask what contacts did follow events at once, and let people out as time passes. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { ContactRecord } from '../../src/audience/schema.ts';
import type { DefinitionRecord } from '../../src/events/schema.ts';
import type { SegmentRecord } from '../../src/segments/schema.ts';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  rowsOf,
  type Sender,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { defineEvent, sendEvent } from '../support/event-journey.ts';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { computeNext, followChanges } from '../../src/segments/membership.ts';
import { changePlan } from '../../src/operator/plan.ts';
import { lookAtWindows } from '../../src/segments/windows.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let clock: ShiftedClock;
let other: Sender & { organizationId: string };

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock });
  other = await createSender(server.installation, 'other.example');
});
afterAll(() => server.stop());

let made = 0;
const unique = (what: string) => `${what}${(made += 1)}`;
const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown, sender?: Sender) =>
  server.request<Body>(method, `/v1${path}`, body, authorize(sender));
const field = (name: string, type: string) => ({ name, type });
const fieldsOfOrders = [
  field('code', 'string'),
  field('total', 'number'),
  field('items', 'integer'),
  field('gift', 'boolean'),
  field('due', 'date'),
];
/** Another organization has events of the same names, whose fields have other types. */
async function anEvent(): Promise<DefinitionRecord> {
  const name = unique('order.');
  const otherwise = fieldsOfOrders.map(({ name }) => field(name, name === 'code' ? 'number' : 'string'));
  await defineEvent(server, { name, schema: { fields: otherwise } }, other);
  return defineEvent(server, { name, schema: { fields: fieldsOfOrders } });
}
const aContact = async (sender?: Sender) =>
  (await ask<ContactRecord>('POST', '/contacts', { external_id: unique('user ') }, sender)).body.id;

async function addSegment(conditions: object, sender?: Sender): Promise<string> {
  const body = { name: unique('Segment '), conditions };
  const response = await ask<SegmentRecord>('POST', '/segments', body, sender);
  expect([response.status, response.text]).toEqual([201, expect.anything()]);
  await eventually(
    () => ask<SegmentRecord>('GET', `/segments/${response.body.id}`, undefined, sender),
    ({ body: { status } }) => status === 'ready',
  );
  return response.body.id;
}

/** Once they are so. */
async function hasMembers(segmentId: string, members: readonly string[], sender?: Sender): Promise<void> {
  await eventually(
    () =>
      ask<{ data: { id: string }[] }>(
        'GET',
        `/contacts?segment_id=${segmentId}&limit=100`,
        undefined,
        sender,
      ),
    ({ body }) =>
      JSON.stringify(body.data.map(({ id }) => id).sort()) === JSON.stringify([...members].sort()),
  );
}

const send = (event: DefinitionRecord, contactId: string, payload: object = {}, more: object = {}) =>
  sendEvent(server, { event: event.name, contact_id: contactId, payload, ...more });
const did = (event: Pick<DefinitionRecord, 'name'>, more: object = {}) => ({
  type: 'event',
  event: event.name,
  ...more,
});
const times = (operator: string, value: number) => ({ count: { operator, value } });
/** Those who did it, or something else: the first of all tests would otherwise see the contacts of the others. */
const among = (event: DefinitionRecord, condition: object) => ({
  type: 'group',
  match: 'all',
  conditions: [did(event), condition],
});

test.each([
  ['gte', 1, [1, 2, 3]],
  ['gte', 2, [2, 3]],
  ['gte', 0, [0, 1, 2, 3]],
  ['gt', 0, [1, 2, 3]],
  ['gt', 2, [3]],
  ['eq', 0, [0]],
  ['eq', 2, [2]],
  ['neq', 0, [1, 2, 3]],
  ['neq', 2, [0, 1, 3]],
  ['lt', 0, []],
  ['lt', 1, [0]],
  ['lt', 3, [0, 1, 2]],
  ['lte', 0, [0]],
  ['lte', 1, [0, 1]],
])('whoever did it %s %i times is a member, when it is computed and when it is followed', async (...row) => {
  const [operator, value, expected] = row;
  const [member, event] = [await anEvent(), await anEvent()];
  const contacts = [await aContact(), await aContact(), await aContact(), await aContact()];
  for (const contact of contacts) await send(member, contact);
  const condition = among(member, did(event, times(operator, value)));
  const followed = await addSegment(condition);
  for (const [count, contact] of contacts.entries())
    for (let n = 0; n < count; n += 1) await send(event, contact);
  const members = expected.map((index) => contacts[index]!);
  await hasMembers(followed, members);
  await hasMembers(await addSegment(condition), members);
  const { body } = await ask<{ contact_count: number }>('POST', '/segments/preview', {
    conditions: condition,
  });
  expect(body.contact_count).toBe(members.length);
});

test.each([
  [{ field: 'code', operator: 'starts_with', value: 'A' }, { code: 'A1' }, { code: 'a1' }],
  [{ field: 'total', operator: 'gt', value: 99.5 }, { total: 99.51 }, { total: 99.5 }],
  [{ field: 'items', operator: 'between', value: [2, 3] }, { items: 3 }, { items: 4 }],
  [{ field: 'gift', operator: 'is_false' }, { gift: false }, { gift: true }],
  [{ field: 'due', operator: 'before', value: '2026-11-21' }, { due: '2026-11-20' }, { due: '2026-11-21' }],
  [
    { field: 'due', operator: 'after', value: '2026-11-21T00:00:00+01:00' },
    { due: '2026-11-21' },
    { due: '2026-11-20T23:00:00Z' },
  ],
  [{ field: 'total', operator: 'is_not_set' }, { code: 'x' }, { total: 0 }],
  [{ field: 'code', operator: 'neq', value: 'x' }, {}, { code: 'x' }],
])('an event counts where %j holds: %j, not %j', async (condition, good, bad) => {
  const event = await anEvent();
  const [ann, bob] = [await aContact(), await aContact()];
  await send(event, ann, good);
  await send(event, bob, bad);
  await hasMembers(await addSegment(did(event, { where: [condition] })), [ann]);
});

test('all that is asked of the fields holds of one event, not each of another', async () => {
  const event = await anEvent();
  const [ann, bob] = [await aContact(), await aContact()];
  const where = [
    { field: 'code', operator: 'eq', value: 'A' },
    { field: 'total', operator: 'gte', value: 100 },
  ];
  const segment = await addSegment(did(event, { where, ...times('gte', 2) }));
  await send(event, bob, { code: 'A', total: 1 });
  await send(event, bob, { code: 'B', total: 100 });
  await send(event, ann, { code: 'A', total: 100 });
  await send(event, ann, { code: 'A', total: 101 });
  await hasMembers(segment, [ann]);
});

test('values that a field had before it was declared, or as another type, count as none', async () => {
  const event = await defineEvent(server, { name: unique('order.') });
  const [ann, bob] = [await aContact(), await aContact()];
  const wrong = { total: '101', gift: 'true', code: 5, due: 'later' };
  await send(event, ann, wrong);
  await send(event, bob, { total: 101, gift: true, code: '5', due: '2026-11-22' });
  await ask('PATCH', `/events/${event.id}`, { schema: { fields: fieldsOfOrders } });
  const conditions = [
    { field: 'total', operator: 'gt', value: 100 },
    { field: 'gift', operator: 'is_true' },
    { field: 'code', operator: 'is_set' },
    { field: 'due', operator: 'after', value: '2026-11-21' },
  ];
  for (const condition of conditions)
    await hasMembers(await addSegment(did(event, { where: [condition] })), [bob]);
});

test('the events of another organization, of the same name and contact, change nothing', async () => {
  const event = await anEvent();
  const theirs = await aContact(other);
  const ours = await aContact();
  const segment = await addSegment(did(event));
  const foreign = await addSegment(did(event), other);
  await sendEvent(server, { event: event.name, contact_id: theirs }, other);
  await hasMembers(foreign, [theirs], other);
  await hasMembers(segment, []);
  await send(event, ours);
  await hasMembers(segment, [ours]);
  await hasMembers(foreign, [theirs], other);
});

test('a deleted contact leaves, and 450 that are made by events join', async () => {
  const event = await anEvent();
  const segment = await addSegment(did(event));
  const ann = await aContact();
  await send(event, ann);
  await hasMembers(segment, [ann]);
  const events = Array.from({ length: 450 }, () => ({ event: event.name, external_id: unique('new ') }));
  expect((await ask('POST', '/events/send/batch', { events })).status).toBe(202);
  const counts = (count: number) =>
    eventually(
      () => ask<SegmentRecord>('GET', `/segments/${segment}`),
      ({ body }) => body.contact_count === count,
    );
  await counts(451);
  await ask('DELETE', `/contacts/${ann}`);
  await counts(450);
});

test('what is wrong with a condition is refused with its path', async () => {
  const event = await anEvent();
  const refused = async (conditions: object, message: string) => {
    const response = await ask('POST', '/segments', { name: unique('Segment '), conditions });
    expect(response.body).toMatchObject({ status_code: 422, name: 'validation_error', message });
  };
  const foreign = await defineEvent(server, {}, other);
  await refused(did(foreign), 'conditions.event is not a defined event');
  await refused(
    among(event, did(event, { where: [{ field: 'colour', operator: 'is_set' }] })),
    'conditions.conditions[1].where[0].field is not a declared field of the event',
  );
  await refused(
    did(event, { where: [{ field: 'code', operator: 'gt', value: 5 }] }),
    'conditions.where[0].operator must be one of eq, neq, in, not_in, contains, not_contains, starts_with, ends_with, is_set, is_not_set',
  );
});

test('an event keeps the fields that a segment of its organization asks about, and cannot be deleted', async () => {
  const event = await anEvent();
  const where = [
    { field: 'code', operator: 'is_set' },
    { field: 'total', operator: 'gt', value: 5 },
  ];
  const segment = await addSegment(did(event, { where }));
  const change = (fields: object[]) => ask<ErrorBody>('PATCH', `/events/${event.id}`, { schema: { fields } });
  const used = [field('code', 'string'), field('total', 'number')];
  for (const fields of [[], [used[0]!], [used[0]!, field('total', 'string')]]) {
    const { status, body } = await change(fields);
    expect([status, body.name, body.message]).toEqual([409, 'conflict', expect.stringContaining(segment)]);
  }
  expect((await change(used)).status).toBe(200);
  const named = await ask<{ data: DefinitionRecord[] }>(
    'GET',
    `/events?search=${event.name}`,
    undefined,
    other,
  );
  const theirs = named.body.data[0]!.id;
  expect((await ask('PATCH', `/events/${theirs}`, { schema: { fields: [] } }, other)).status).toBe(200);
  expect((await ask('DELETE', `/events/${event.id}`)).body).toMatchObject({ name: 'event_in_use' });
  expect((await ask('DELETE', `/events/${theirs}`, undefined, other)).status).toBe(200);

  const conditions = did(event, { where: [where[0]] });
  await ask('PATCH', `/segments/${segment}`, { conditions });
  expect((await change([used[0]!])).status).toBe(200);
  await ask('DELETE', `/segments/${segment}`);
  expect((await change([])).status).toBe(200);
  expect((await ask('DELETE', `/events/${event.id}`)).status).toBe(200);
});

test('a segment waits for a change of the schema that is under way, and is refused if its field is gone', async () => {
  const event = await anEvent();
  const conditions = did(event, { where: [{ field: 'code', operator: 'is_set' }] });
  const { asked } = await server.installation.database.asOrganizations(
    [server.organizationId],
    async (transaction) => {
      await transaction.rows(unpreparedStatement('select from event_definitions where id = $1 for update'), [
        event.id,
      ]);
      const asked = ask('POST', '/segments', { name: unique('Segment '), conditions });
      await eventually(
        () => rowsOf(server, `select from pg_stat_activity where wait_event_type = 'Lock'`),
        (waiting) => waiting.length > 0,
      );
      await transaction.rows(unpreparedStatement('update event_definitions set schema = $2 where id = $1'), [
        event.id,
        JSON.stringify({ fields: [] }),
      ]);
      return { asked };
    },
  );
  expect((await asked).body).toMatchObject({
    status_code: 422,
    message: 'conditions.where[0].field is not a declared field of the event',
  });
});

test('whether it holds for a contact is explained', async () => {
  const event = await anEvent();
  const ann = await aContact();
  await send(event, ann, { total: 5 });
  const segment = await addSegment({
    type: 'group',
    match: 'any',
    conditions: [
      did(event, times('gt', 1)),
      did(event, { where: [{ field: 'total', operator: 'eq', value: 5 }] }),
    ],
  });
  const { body } = await ask('GET', `/segments/${segment}/contacts/${ann}`);
  expect(body).toMatchObject({
    is_member: true,
    holds: true,
    conditions: {
      conditions: [
        { type: 'event', holds: false },
        { type: 'event', holds: true },
      ],
    },
  });
});

const within = (value: number, unit: string) => ({ within: { value, unit } });
const before = (ms: number) => ({ occurred_at: new Date(clock.nowMs() - ms).toISOString() });
const hourMs = 3_600_000;
const dayMs = 24 * hourMs;

test('contacts leave by themselves as time passes, and enter where they must not have done it', async () => {
  const event = await anEvent();
  const [ann, bob] = [await aContact(), await aContact()];
  await send(event, ann, {}, before(22 * hourMs));
  await send(event, bob, {}, before(hourMs));
  const lately = did(event, within(1, 'day'));
  const segment = await addSegment(lately);
  const using = await addSegment({
    type: 'group',
    match: 'all',
    conditions: [did(event), { type: 'segment', operator: 'not_in', ids: [segment] }],
  });
  const often = await addSegment(did(event, { ...within(1, 'day'), ...times('gte', 2) }));
  const never = await addSegment(among(event, did(event, { ...within(1, 'day'), ...times('eq', 0) })));
  await hasMembers(segment, [ann, bob]);
  await hasMembers(using, []);
  await hasMembers(never, []);
  // This one comes late, and is the next to leave.
  await send(event, bob, {}, before(22.5 * hourMs));
  await hasMembers(often, [bob]);
  clock.putForward(1.75 * hourMs);
  await hasMembers(often, []);
  await hasMembers(segment, [ann, bob]);
  clock.putForward(0.5 * hourMs);
  await hasMembers(segment, [bob]);
  await hasMembers(using, [ann]);
  await hasMembers(never, [ann]);
  clock.putForward(dayMs);
  await hasMembers(segment, []);
  await hasMembers(never, [ann, bob]);
  await send(event, ann);
  await hasMembers(segment, [ann]);
  clock.putForward(dayMs);
  await hasMembers(segment, []);
});

test('an event that is too old to be kept does not count: by a new plan, as time passes, and for nobody else', async () => {
  const [event, known] = [await anEvent(), await anEvent()];
  const theirs = await aContact(other);
  await sendEvent(server, { event: event.name, contact_id: theirs, ...before(20 * dayMs) }, other);
  const theirSegment = await addSegment(did(event), other);
  const [ann, bob] = [await aContact(), await aContact()];
  await send(event, ann, {}, before(20 * dayMs));
  await send(event, bob, {}, before(9 * dayMs));
  for (const id of [ann, bob]) await send(known, id);
  const segment = await addSegment(did(event));
  const lately = await addSegment(did(event, within(3, 'week')));
  const never = await addSegment(among(known, did(event, times('eq', 0))));
  await hasMembers(segment, [ann, bob]);
  await hasMembers(lately, [ann, bob]);
  await changePlan(server.installation, server.organizationId, { eventsKeptDays: 10 });
  await hasMembers(segment, [bob]);
  await hasMembers(lately, [bob]);
  await hasMembers(never, [ann]);
  clock.putForward(1.5 * dayMs);
  await hasMembers(segment, []);
  await hasMembers(lately, []);
  await hasMembers(never, [ann, bob]);
  await hasMembers(theirSegment, [theirs], other);
  await changePlan(server.installation, server.organizationId, { eventsKeptDays: null });
});

describe('without a worker', () => {
  let server: TestServer;
  let clock: ShiftedClock;
  let event: DefinitionRecord;

  beforeAll(async () => {
    clock = createShiftedClock();
    server = await startTestServer({ clock });
    const theirs = await createSender(server.installation, 'other.example');
    event = await defineEvent(server, { name: 'order.completed' });
    await defineEvent(server, { name: 'order.completed' }, theirs);
    // Theirs leave at the same times.
    for (let n = 0; n < 3; n += 1)
      await sendEvent(server, { event: event.name, external_id: `user ${n}`, ...ago(n * hourMs) }, theirs);
  });
  afterAll(() => server.stop());

  const ago = (ms: number) => ({ occurred_at: new Date(clock.nowMs() - ms).toISOString() });
  const signal = new AbortController().signal;
  const compute = async () => {
    while (await computeNext(server.installation, server.organizationId, signal)) {
      // Until none is due.
    }
  };
  const look = (leavingMax?: number) =>
    lookAtWindows(
      { ...server.installation, ...(leavingMax !== undefined && { leavingMax }) },
      server.organizationId,
    );
  const follow = async () => {
    while (await followChanges(server.installation, server.organizationId)) {
      // Until there are none.
    }
  };
  const takeChanges = async () =>
    (
      await rowsOf<{ contact_ids: string[] }>(
        server,
        'delete from contact_changes where organization_id = $1 returning id, contact_ids',
        [server.organizationId],
      )
    ).map(({ contact_ids: ids }) => ids);
  const make = async (conditions: object) => {
    const body = { name: unique('Segment '), conditions };
    return (await server.request<SegmentRecord>('POST', '/v1/segments', body)).body.id;
  };
  const remove = (segment: string) => server.request('DELETE', `/v1/segments/${segment}`);
  const membersOf = async (segment: string) =>
    (
      await rowsOf<{ id: string }>(server, 'select contact_id as id from memberships where set_id = $1', [
        segment,
      ])
    )
      .map(({ id }) => id)
      .sort();
  const dueAtOf = async (segment: string) => {
    const rows = await rowsOf<{ at: Date | null }>(
      server,
      'select windows_due_at as at from segments where id = $1',
      [segment],
    );
    return rows[0]!.at;
  };
  /** As many contacts with an event each, `apartMs` apart, the first of which happened so long ago. */
  async function contactsWithEvents(count: number, firstMs: number, apartMs: number): Promise<string[]> {
    const presentMs = clock.nowMs();
    const events = Array.from({ length: count }, (_, n) => ({
      event: event.name,
      external_id: unique('doer '),
      occurred_at: new Date(presentMs - firstMs + n * apartMs).toISOString(),
    }));
    expect((await server.request('POST', '/v1/events/send/batch', { events })).status).toBe(202);
    const rows = await rowsOf<{ id: string }>(
      server,
      'select contact_id as id from events where organization_id = $1 order by id desc limit $2',
      [server.organizationId, count],
    );
    return rows.map(({ id }) => id).reverse();
  }

  test('only those are looked at again whose events have left, in pieces, and the next look is when the next one leaves', async () => {
    const ids = await contactsWithEvents(5, 20 * hourMs, hourMs);
    const segment = await make(did(event, within(1, 'day')));
    await compute();
    await follow();
    expect(await look()).toBe(true);
    expect(await look()).toBe(false);
    expect(await takeChanges()).toEqual([]);
    expect((await dueAtOf(segment))!.getTime() - clock.nowMs()).toBeGreaterThan(3.9 * hourMs);
    clock.putForward(4.5 * hourMs);
    expect(await look(2)).toBe(true);
    expect(await look(2)).toBe(false);
    expect(await takeChanges()).toEqual([[ids[0]]]);
    clock.putForward(3 * hourMs);
    while (await look(2)) {
      // The first piece ends with the second event.
    }
    expect(await takeChanges()).toEqual([ids.slice(1, 3), ids.slice(3, 4)]);
    clock.putForward(hourMs);
    await look();
    await follow();
    expect(await membersOf(segment)).toEqual(ids.slice(0, 4).sort());
    // What was followed could have been a late event.
    expect((await dueAtOf(segment))!.getTime() - clock.nowMs()).toBeLessThan(10_000);
    clock.putForward(10_000);
    await look();
    expect(await dueAtOf(segment)).toBe(null);
    await remove(segment);
  });

  test('450 events of one instant leave together', async () => {
    const ids = await contactsWithEvents(450, hourMs, 0);
    const segment = await make(did(event, within(2, 'hour')));
    await compute();
    await follow();
    await look();
    clock.putForward(hourMs + 10_000);
    while (await look(100)) {
      // Until nobody leaves.
    }
    const changes = await takeChanges();
    expect(changes.map(({ length }) => length)).toEqual([100, 100, 100, 100, 50]);
    expect(changes.flat().sort()).toEqual(ids.sort());
    await remove(segment);
  });

  test('what was stored by a transaction that had not seen the segment yet is seen a minute later', async () => {
    const segment = await make(did(event, within(1, 'hour')));
    await compute();
    const ids = await contactsWithEvents(1, 0, 0);
    await takeChanges();
    clock.putForward(30_000);
    await compute();
    expect(await membersOf(segment)).toEqual([]);
    clock.putForward(31_000);
    await compute();
    expect(await membersOf(segment)).toEqual(ids);
    // From then on it is never computed again.
    const due = await rowsOf(server, 'select from segments where id = $1 and compute_at is not null', [
      segment,
    ]);
    expect(due).toEqual([]);
    await remove(segment);
  });

  test('a segment that gets other conditions looks through the windows of these', async () => {
    const ids = await contactsWithEvents(1, hourMs, 0);
    const segment = await make(did(event, within(2, 'day')));
    await compute();
    await follow();
    await look();
    await server.request('PATCH', `/v1/segments/${segment}`, { conditions: did(event, within(2, 'hour')) });
    expect(await look()).toBe(false);
    await compute();
    await look();
    clock.putForward(hourMs + 10_000);
    await look();
    expect(await takeChanges()).toEqual([ids]);
    await server.request('PATCH', `/v1/segments/${segment}`, { conditions: did(event) });
    await compute();
    expect(await look()).toBe(false);
    expect(await dueAtOf(segment)).toBe(null);
    await remove(segment);
  });

  test('of several windows the next look is when the first event leaves any, and all who leave meanwhile are found', async () => {
    const [bought, visited] = [unique('bought.'), unique('visited.')];
    for (const name of [bought, visited]) await defineEvent(server, { name });
    const startMs = clock.nowMs();
    // Some did one of them only, minutes apart; some happened in the same instant.
    const happened = Array.from({ length: 36 }, (_, n) => {
      const person = (n * 5) % 11;
      return {
        event: person < 4 || (person < 7 && n % 2 === 0) ? bought : visited,
        external_id: `mixed ${person}`,
        atMs: startMs - (((n >> 1) * 37) % 23) * hourMs - n * 60_000,
      };
    });
    const events = happened.map(({ atMs, ...one }) => ({
      ...one,
      occurred_at: new Date(atMs).toISOString(),
    }));
    expect((await server.request('POST', '/v1/events/send/batch', { events })).status).toBe(202);
    const names = new Map(
      (
        await rowsOf<{ id: string; name: string }>(
          server,
          "select id, external_id as name from contacts where organization_id = $1 and external_id like 'mixed %'",
          [server.organizationId],
        )
      ).map(({ id, name }) => [id, name]),
    );
    const windows = [
      { event: bought, withinMs: 24 * hourMs },
      { event: visited, withinMs: 6 * hourMs },
      { event: visited, withinMs: 12 * hourMs },
    ] as const;
    const [orders, visits, oftenVisits] = windows;
    const count = (name: string, { event, withinMs }: (typeof windows)[number]) =>
      happened.filter(
        (one) => one.event === event && one.external_id === name && one.atMs > clock.nowMs() - withinMs,
      ).length;
    const either = await make({
      type: 'group',
      match: 'any',
      conditions: [did({ name: bought }, within(24, 'hour')), did({ name: visited }, within(6, 'hour'))],
    });
    const often = await make(did({ name: visited }, { ...within(12, 'hour'), ...times('gte', 2) }));
    const expected = (isMember: (name: string) => boolean) =>
      [...new Set(names.values())].filter(isMember).sort();
    const lookAndFollow = async () => {
      // Until nothing was followed, in pieces that are smaller than what leaves.
      for (clock.putForward(10_000); await look(2); clock.putForward(10_000)) await follow();
    };
    const nextDueMs = async () =>
      Math.min(...(await Promise.all([either, often].map(dueAtOf))).map((at) => at?.getTime() ?? Infinity));
    await compute();
    await follow();
    for (let step = 0; step < 24; step += 1) {
      await lookAndFollow();
      const members = await Promise.all([either, often].map(membersOf));
      expect(members.map((ids) => ids.flatMap((id) => names.get(id) ?? []).sort())).toEqual([
        expected((name) => count(name, orders) + count(name, visits) > 0),
        expected((name) => count(name, oftenVisits) >= 2),
      ]);
      const leaving = windows.flatMap(({ event, withinMs }) =>
        happened.flatMap((one) => (one.event === event ? [one.atMs + withinMs] : [])),
      );
      const nextMs = Math.min(...leaving.filter((atMs) => atMs > clock.nowMs()));
      const dueMs = await nextDueMs();
      expect(dueMs === Infinity ? dueMs : Math.abs(dueMs - nextMs) <= 3_000 || dueMs).toBe(
        nextMs === Infinity ? Infinity : true,
      );
      if (dueMs === Infinity) break;
      // To the very next one, or over many.
      clock.putForward((step % 3 === 2 ? 3 * hourMs : 0) + dueMs - clock.nowMs() + 1);
    }
    await remove(either);
    await remove(often);
  });

  test('a clock that was ahead and is set back lets events in again, and out a second time', async () => {
    const ids = await contactsWithEvents(1, hourMs, 0);
    const segment = await make(did(event, within(2, 'hour')));
    await compute();
    await follow();
    clock.putForward(3 * hourMs);
    await look();
    await follow();
    expect(await membersOf(segment)).not.toContain(ids[0]);
    clock.putForward(-2.5 * hourMs);
    await server.request('PATCH', `/v1/contacts/${ids[0]}`, { first_name: 'Ann' });
    await follow();
    expect(await membersOf(segment)).toContain(ids[0]);
    clock.putForward(10_000);
    await look();
    clock.putForward(hourMs);
    while (await look()) await follow();
    expect(await membersOf(segment)).not.toContain(ids[0]);
    await remove(segment);
  });
});
