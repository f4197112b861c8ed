/** Segments from their creation to their deletion: computed, followed as contacts change, explained. */
import pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import type { ContactRecord } from '../../src/audience/schema.ts';
import { startSegmentUpkeep } from '../../src/segments/jobs.ts';
import { computeNext, followChanges } from '../../src/segments/membership.ts';
import type { SegmentRecord } from '../../src/segments/schema.ts';
import { tryLockPreview } from '../../src/segments/segments.ts';
import {
  type DatabaseAddress,
  openDatabase,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  rowsOf,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { clientConfigOf, useTestDatabase } from '../support/test-database.ts';

let server: TestServer;
let clock: ShiftedClock;

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock });
});
afterAll(() => server.stop());
beforeEach(() =>
  updateOrganization(server.installation, server.organizationId, {
    limits: { segments: null },
    requestsPerWindow: 100_000,
  }),
);

type Page<Item> = { object: 'list'; has_more: boolean; data: Item[] };

const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown) =>
  server.request<Body>(method, `/v1${path}`, body);
let made = 0;
const unique = (what: string) => `${what}_${(made += 1)}`;
const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

async function created<Body = { id: string }>(path: string, body: object): Promise<Body> {
  const response = await ask<Body>('POST', path, body);
  expect([path, response.status, response.text]).toMatchObject([path, 201, expect.any(String)]);
  return response.body;
}
const aContact = (more: object = {}) =>
  created<ContactRecord>('/contacts', { external_id: unique('user'), ...more });
const aSegment = (conditions: object, more: object = {}) =>
  created<SegmentRecord>('/segments', { name: unique('segment'), conditions, ...more });
const aProperty = async (type: string) =>
  (await created<{ key: string }>('/properties', { key: unique('p'), name: 'P', type })).key;
const read = async (id: string) => (await ask<SegmentRecord>('GET', `/segments/${id}`)).body;
const ready = (id: string) =>
  eventually(
    () => read(id),
    ({ status }) => status === 'ready',
  );
const membersOf = async (id: string) => {
  const { status, body } = await ask<Page<{ id: string }>>('GET', `/contacts?segment_id=${id}&limit=100`);
  return status === 200 ? body.data.map((contact) => contact.id) : status;
};
const becomes = (id: string, members: string[]) =>
  eventually(
    () => membersOf(id),
    (present) => JSON.stringify(present) === JSON.stringify(members),
  );
const named = (name: string) => ({ type: 'field', field: 'first_name', operator: 'eq', value: name });
const opened = (campaignId: string) => ({
  type: 'message',
  channel: 'email',
  action: 'opened',
  campaign_id: campaignId,
});
const inSets = (type: string, ...ids: string[]) => ({ type, operator: 'in', ids });

test('a segment is created, computed, read, listed, renamed and deleted', async () => {
  const name = unique('Ada');
  const contact = await aContact({ first_name: name });
  await aContact({ first_name: `${name}!` });
  const conditions = { type: 'group', match: 'all', conditions: [named(name)] };
  const segment = await aSegment(conditions, { description: 'Her' });
  expect(segment).toEqual({
    id: expect.any(String),
    name: segment.name,
    description: 'Her',
    conditions,
    status: 'computing',
    contact_count: 0,
    computed_at: null,
    created_at: segment.created_at,
    updated_at: segment.created_at,
  });
  const computed = await ready(segment.id);
  expect(computed).toEqual({
    ...segment,
    status: 'ready',
    contact_count: 1,
    computed_at: expect.stringMatching(/Z$/),
  });
  expect(await membersOf(segment.id)).toEqual([contact.id]);
  const renamed = await ask<SegmentRecord>('PATCH', `/segments/${segment.id}`, {
    name: `Re${segment.name}`,
    description: null,
  });
  expect(renamed.body).toMatchObject({ name: `Re${segment.name}`, description: null, status: 'ready' });
  const listed = await ask<Page<SegmentRecord>>('GET', `/segments?search=RE${segment.name}`);
  expect(listed.body.data).toEqual([renamed.body]);

  expect((await ask('DELETE', `/segments/${segment.id}`)).body).toEqual({
    object: 'segment',
    id: segment.id,
    deleted: true,
  });
  for (const method of ['GET', 'PATCH', 'DELETE']) {
    const again = await ask(method, `/segments/${segment.id}`, method === 'PATCH' ? {} : undefined);
    expect([method, again.status]).toEqual([method, 404]);
  }
  expect(await membersOf(segment.id)).toEqual([]);
  expect((await ask('GET', `/contacts/${contact.id}`)).status).toBe(200);
});

test('two segments may have the same name', async () => {
  const { name } = await aSegment(named('x'));
  await aSegment(named('y'), { name });
});

test.each([
  [{ name: '' }, 'name must not be empty'],
  [{ name: 'x'.repeat(256) }, 'name must be at most 255 characters'],
  [{ conditions: undefined }, 'conditions is required'],
  [
    { conditions: { ...named('x'), value: 'x'.repeat(32_768) } },
    'conditions must have at most 32768 characters',
  ],
  [{ conditions: [] }, 'conditions must be an object'],
  [{ conditions: { type: 'group', match: 'all', conditions: [] } }, 'conditions.conditions'],
  [{ conditions: { type: 'automation', id: 'x' } }, 'conditions.type must be one of'],
  [{ conditions: { type: 'event', event: 'x' } }, 'conditions.event is not a defined event'],
  [
    { conditions: { type: 'group', match: 'any', conditions: [named('x'), { ...named('x'), value: 1 }] } },
    'conditions.conditions[1].value must be',
  ],
  [{ conditions: { type: 'property', key: 'nobody', operator: 'is_set' } }, 'conditions.key'],
  [{ conditions: inSets('list', unknownId) }, 'conditions.ids[0]'],
  [{ conditions: opened('x') }, 'conditions.campaign_id must be a UUID'],
  [{ conditions: opened(unknownId) }, 'conditions.campaign_id is not a known campaign that was sent'],
  [{ status: 'ready' }, 'status is not a known field'],
])('%j is refused', async (wrong, message) => {
  const before = await rowsOf(server, 'select from contact_sets');
  const response = await ask('POST', '/segments', { name: 'Fine', conditions: named('x'), ...wrong });
  expect([response.status, response.body.name, response.body.message]).toEqual([
    422,
    'validation_error',
    expect.stringContaining(message),
  ]);
  expect(await rowsOf(server, 'select from contact_sets')).toHaveLength(before.length);
});

test('a plan limits how many there are', async () => {
  const [{ count }] = (await rowsOf<{ count: number }>(
    server,
    'select count(*) from segments where organization_id = $1',
    [server.organizationId],
  )) as [{ count: number }];
  await updateOrganization(server.installation, server.organizationId, { limits: { segments: count + 1 } });
  const responses = await Promise.all(
    Array.from({ length: 5 }, () => ask('POST', '/segments', { name: 'One', conditions: named('x') })),
  );
  expect(responses.map(({ status }) => status).sort()).toEqual([201, 422, 422, 422, 422]);
  expect(responses.find(({ status }) => status === 422)!.body.name).toBe('segment_limit_reached');
});

describe('members', () => {
  test('come and go as contacts are created, changed and deleted', async () => {
    const name = unique('Grace');
    const segment = await aSegment(named(name));
    await ready(segment.id);
    const first = await aContact({ first_name: name });
    const second = await aContact({ first_name: 'Other' });
    await becomes(segment.id, [first.id]);
    await ask('PATCH', `/contacts/${second.id}`, { first_name: name });
    await becomes(segment.id, [second.id, first.id]);
    await ask('PATCH', `/contacts/${first.id}`, { first_name: null });
    await becomes(segment.id, [second.id]);
    await ask('DELETE', `/contacts/${second.id}`);
    await becomes(segment.id, []);
    await eventually(
      () => rowsOf(server, 'select from contact_changes'),
      (rows) => rows.length === 0,
    );
    expect((await read(segment.id)).contact_count).toBe(0);
  });

  test('come and go with lists, tags, properties and consent', async () => {
    const list = await created('/lists', { name: unique('list') });
    const tag = await created('/tags', { name: unique('tag') });
    const key = await aProperty('number');
    const segment = await aSegment({
      type: 'group',
      match: 'all',
      conditions: [
        inSets('list', list.id),
        { type: 'tag', operator: 'not_in', ids: [tag.id] },
        { type: 'property', key, operator: 'gte', value: 10 },
        { type: 'consent', channel: 'sms', operator: 'is', value: 'subscribed' },
      ],
    });
    const contact = await aContact({ properties: { [key]: 10 } });
    await ready(segment.id);
    const members = { contact_ids: [contact.id] };
    await ask('POST', `/lists/${list.id}/contacts`, members);
    await becomes(segment.id, [contact.id]);
    await ask('POST', `/tags/${tag.id}/contacts`, members);
    await becomes(segment.id, []);
    await ask('DELETE', `/tags/${tag.id}/contacts`, members);
    await becomes(segment.id, [contact.id]);
    await ask('PATCH', `/contacts/${contact.id}`, { properties: { [key]: 9.99 } });
    await becomes(segment.id, []);
    await ask('PATCH', `/contacts/${contact.id}`, { properties: { [key]: 11 } });
    await becomes(segment.id, [contact.id]);
    await ask('PATCH', `/contacts/${contact.id}`, { consent: { sms: 'unsubscribed' } });
    await becomes(segment.id, []);
  });

  test('come and go through segments that use others', async () => {
    const name = unique('Alan');
    const base = await aSegment(named(name));
    const middle = await aSegment(inSets('segment', base.id));
    const top = await aSegment({ type: 'group', match: 'none', conditions: [inSets('segment', middle.id)] });
    const contact = await aContact({ first_name: name });
    await ready(top.id);
    await becomes(middle.id, [contact.id]);
    expect(await isMember(top.id, contact.id)).toBe(false);
    await ask('PATCH', `/contacts/${contact.id}`, { first_name: 'Other' });
    await becomes(middle.id, []);
    expect(await isMember(top.id, contact.id)).toBe(true);
    await ask('PATCH', `/segments/${base.id}`, { conditions: named('Other') });
    await eventually(
      () => isMember(top.id, contact.id),
      (is) => !is,
    );
  });

  test('come and go as time passes', async () => {
    const key = await aProperty('date');
    const contact = await aContact({ properties: { [key]: new Date(clock.nowMs() - 3_000).toISOString() } });
    const segment = await aSegment({
      type: 'property',
      key,
      operator: 'within_last',
      value: { value: 2, unit: 'hour' },
    });
    await ready(segment.id);
    expect(await membersOf(segment.id)).toEqual([contact.id]);
    clock.putForward(2 * 60 * 60_000);
    await becomes(segment.id, []);
  });

  test('come with what becomes of messages', async () => {
    const email = `${unique('reader')}@example.com`;
    const contact = await aContact({ email });
    const segment = await aSegment({
      type: 'group',
      match: 'all',
      conditions: [
        { type: 'message', channel: 'email', action: 'delivered' },
        { type: 'field', field: 'email', operator: 'eq', value: email },
      ],
    });
    await ready(segment.id);
    expect(await membersOf(segment.id)).toEqual([]);
    await settled(server, await send(server, { to: [email.toUpperCase()] }));
    clock.putForward(61_000);
    await becomes(segment.id, [contact.id]);
  });

  test('come with what becomes of one campaign, also after it was deleted', async () => {
    const [list, other] = [await aList(), await aList()];
    const contact = await aContact({ email: `${unique('reader')}@example.com`, list_ids: [list] });
    await aContact({ email: `${unique('reader')}@example.com`, list_ids: [other] });
    const id = await sent(await aCampaign(list));
    await sent(await aCampaign(other));
    const delivered = { ...opened(id), action: 'delivered' };
    const segment = await aSegment(delivered);
    await becomes(segment.id, [contact.id]);
    expect((await ask('DELETE', `/email/campaigns/${id}`)).status).toBe(200);
    await ask('PATCH', `/contacts/${contact.id}`, { email: `${unique('moved')}@example.com` });
    await eventually(
      () => rowsOf(server, 'select from contact_changes'),
      (rows) => rows.length === 0,
    );
    expect(await membersOf(segment.id)).toEqual([contact.id]);
    const preview = await ask<{ contact_count: number }>('POST', '/segments/preview', {
      conditions: { type: 'group', match: 'all', conditions: [delivered] },
    });
    expect([preview.status, preview.body.contact_count]).toEqual([200, 1]);
  });

  const aList = async () => (await created('/lists', { name: unique('list') })).id;
  const sent = async (id: string) => {
    await ask('POST', `/email/campaigns/${id}/send`, {});
    await eventually(
      () => ask<{ status: string }>('GET', `/email/campaigns/${id}`),
      ({ body }) => body.status === 'sent',
    );
    return id;
  };

  test('are those of the new conditions after a change of them, and the old ones are not shown meanwhile', async () => {
    const [before, after] = [unique('Before'), unique('After')];
    await aContact({ first_name: before });
    const contact = await aContact({ first_name: after });
    const segment = await aSegment(named(before));
    await ready(segment.id);
    const patched = await ask<SegmentRecord>('PATCH', `/segments/${segment.id}`, {
      conditions: named(after),
    });
    expect(patched.body).toMatchObject({ status: 'computing', conditions: named(after) });
    await ready(segment.id);
    expect(await membersOf(segment.id)).toEqual([contact.id]);
  });

  test('are all there after hundreds of changes at once, computed by any worker meanwhile', async () => {
    const name = unique('Many');
    const segment = await aSegment(named(name));
    const contacts = await Promise.all(
      Array.from({ length: 150 }, (_, index) => aContact({ first_name: index % 2 === 0 ? name : 'Other' })),
    );
    // On a busy machine, a request that waits too long for a connection is answered with 503.
    const askUntilServed = async (...request: Parameters<typeof ask>) => {
      for (;;) {
        const answer = await ask(...request);
        if (answer.status !== 503) return answer;
      }
    };
    const answers = await Promise.all(
      contacts.flatMap(({ id }, index) => [
        askUntilServed('PATCH', `/contacts/${id}`, { first_name: index % 3 === 0 ? name : 'Other' }),
        ...(index % 10 === 0 ? [askUntilServed('DELETE', `/contacts/${id}`)] : []),
        ...(index % 25 === 0
          ? [askUntilServed('PATCH', `/segments/${segment.id}`, { conditions: { ...named(name) } })]
          : []),
      ]),
    );
    // 404 is a contact that was deleted first.
    for (const { status, text } of answers) expect([200, 404], text).toContain(status);
    await eventually(
      () => rowsOf(server, 'select from contact_changes'),
      (rows) => rows.length === 0,
    );
    await ready(segment.id);
    const expected = await rowsOf<{ id: string }>(
      server,
      'select id from contacts where first_name = $1 order by id desc',
      [name],
    );
    const members = await rowsOf<{ id: string }>(
      server,
      'select contact_id as id from memberships where set_id = $1 order by 1 desc',
      [segment.id],
    );
    expect(members).toEqual(expected);
    expect((await read(segment.id)).contact_count).toBe(expected.length);
  });

  async function isMember(segmentId: string, contactId: string): Promise<boolean> {
    const { body } = await ask<{ is_member: boolean }>('GET', `/segments/${segmentId}/contacts/${contactId}`);
    return body.is_member;
  }
});

test('a campaign is not known before it is sent, nor to another organization afterwards', async () => {
  const list = await created('/lists', { name: unique('list') });
  await aContact({ email: `${unique('reader')}@example.com`, list_ids: [list.id] });
  const id = await aCampaign(list.id);
  const refusal = expect.objectContaining({
    message: expect.stringContaining(
      'conditions.conditions[0].campaign_id is not a known campaign that was sent',
    ),
  });
  const conditions = { type: 'group', match: 'any', conditions: [opened(id.toUpperCase())] };
  const preview = async (headers = {}) => {
    const response = await server.request('POST', '/v1/segments/preview', { conditions }, headers);
    return [response.status, response.body];
  };
  expect(await preview()).toEqual([422, refusal]);
  await ask('POST', `/email/campaigns/${id}/send`, {
    scheduled_at: new Date(clock.nowMs() + 3_600_000_000).toISOString(),
  });
  expect(await preview()).toEqual([422, refusal]);
  await ask('POST', `/email/campaigns/${id}/send`, {});
  expect(await preview()).toEqual([200, { contact_count: 0, sample: [] }]);
  const stranger = await createSender(server.installation, 'stranger.example');
  expect(await preview(authorize(stranger))).toEqual([422, refusal]);
});

const aCampaign = async (listId: string) => {
  const campaign = await created('/email/campaigns', {
    ...{ name: 'News', from: 'hello@postillion.test', from_name: 'Postillion' },
    ...{ subject: 'News', html: '<p>News</p>', list_ids: [listId] },
  });
  return campaign.id;
};

describe('what a segment uses', () => {
  test('cannot be deleted before it', async () => {
    const list = await created('/lists', { name: unique('list') });
    const tag = await created('/tags', { name: unique('tag') });
    const property = await created<{ id: string; key: string }>('/properties', {
      key: unique('p'),
      name: 'P',
      type: 'string',
    });
    const used = await aSegment(named('x'));
    const segment = await aSegment({
      type: 'group',
      match: 'any',
      conditions: [
        inSets('list', list.id),
        inSets('tag', tag.id),
        inSets('segment', used.id),
        { type: 'property', key: property.key, operator: 'is_set' },
      ],
    });
    for (const [path, name] of [
      [`/lists/${list.id}`, 'conflict'],
      [`/tags/${tag.id}`, 'conflict'],
      [`/properties/${property.id}`, 'conflict'],
      [`/segments/${used.id}`, 'segment_in_use'],
    ] as const) {
      const refused = await ask('DELETE', path);
      expect([path, refused.status, refused.body.name]).toEqual([path, 409, name]);
    }
    await ask('PATCH', `/segments/${segment.id}`, { conditions: inSets('list', list.id) });
    expect((await ask('DELETE', `/tags/${tag.id}`)).status).toBe(200);
    expect((await ask('DELETE', `/lists/${list.id}`)).status).toBe(409);
    await ask('DELETE', `/segments/${segment.id}`);
    expect((await ask('DELETE', `/lists/${list.id}`)).status).toBe(200);
    expect((await ask('DELETE', `/segments/${used.id}`)).status).toBe(200);
  });

  test('is never itself, be it through others, and be it at once', async () => {
    const first = await aSegment(named('x'));
    const second = await aSegment(inSets('segment', first.id));
    const refused = await ask('PATCH', `/segments/${first.id}`, { conditions: inSets('segment', second.id) });
    expect([refused.status, refused.body.message]).toEqual([
      422,
      'conditions must not refer to the segment itself, directly or through other segments',
    ]);
    expect(
      (await ask('PATCH', `/segments/${first.id}`, { name: 'New', conditions: inSets('segment', first.id) }))
        .status,
    ).toBe(422);
    expect((await read(first.id)).name).toBe(first.name);
    const [a, b] = [await aSegment(named('x')), await aSegment(named('x'))];
    const crossed = await Promise.all([
      ask('PATCH', `/segments/${a.id}`, { conditions: inSets('segment', b.id) }),
      ask('PATCH', `/segments/${b.id}`, { conditions: inSets('segment', a.id) }),
    ]);
    expect(crossed.map(({ status }) => status).sort()).toEqual([200, 422]);
  });

  test('is either held or deleted, never both, when both are asked for at once', async () => {
    for (let round = 0; round < 10; round += 1) {
      const list = await created('/lists', { name: unique('list') });
      const [make, remove] = await Promise.all([
        ask('POST', '/segments', { name: 'Race', conditions: inSets('list', list.id) }),
        ask('DELETE', `/lists/${list.id}`),
      ]);
      expect([
        [201, 409],
        [422, 200],
      ]).toContainEqual([make.status, remove.status]);
    }
  });
});

test('an organization has one preview at a time, and waits for none of another', async () => {
  const stranger = await createSender(server.installation, 'beside.example');
  const preview = async (headers = {}) => {
    const response = await server.request<{ message?: string }>(
      'POST',
      '/v1/segments/preview',
      { conditions: named(unique('Alone')) },
      headers,
    );
    return [response.status, response.body.message];
  };
  await server.installation.database.asOrganizations([server.organizationId], async (transaction) => {
    expect(await tryLockPreview(transaction, server.organizationId)).toBe(true);
    expect(await preview()).toEqual([
      503,
      'Another preview of the organization is running. Try again when it is done.',
    ]);
    expect(await preview(authorize(stranger))).toEqual([200, undefined]);
  });
  expect(await preview()).toEqual([200, undefined]);
});

test('a preview counts, shows the newest ten, and keeps nothing', async () => {
  const name = unique('Preview');
  const contacts: ContactRecord[] = [];
  for (let index = 0; index < 12; index += 1) contacts.unshift(await aContact({ first_name: name }));
  const { status, body } = await ask<{ contact_count: number; sample: ContactRecord[] }>(
    'POST',
    '/segments/preview',
    { conditions: named(name) },
  );
  expect([status, body]).toEqual([200, { contact_count: 12, sample: contacts.slice(0, 10) }]);
  const wrong = await ask('POST', '/segments/preview', { conditions: { type: 'nothing' } });
  expect([wrong.status, wrong.body.message]).toEqual([422, expect.stringContaining('conditions.type')]);
  expect((await ask('POST', '/segments/preview', { conditions: named('x'), name: 'x' })).status).toBe(422);
});

test('an explanation says of every condition whether it holds', async () => {
  const name = unique('Why');
  const contact = await aContact({ first_name: name, consent: { sms: 'unsubscribed' } });
  const consent = { type: 'consent', channel: 'sms', operator: 'is', value: 'subscribed' };
  const segment = await aSegment({
    type: 'group',
    match: 'all',
    conditions: [named(name), { type: 'group', match: 'none', conditions: [named('x')] }, consent],
  });
  await ready(segment.id);
  const { status, body } = await ask('GET', `/segments/${segment.id}/contacts/${contact.id}`);
  expect([status, body]).toEqual([
    200,
    {
      segment_id: segment.id,
      contact_id: contact.id,
      is_member: false,
      holds: false,
      conditions: {
        type: 'group',
        match: 'all',
        holds: false,
        conditions: [
          { ...named(name), holds: true },
          {
            type: 'group',
            match: 'none',
            holds: true,
            conditions: [{ ...named('x'), holds: false }],
          },
          { ...consent, holds: false },
        ],
      },
    },
  ]);
  expect((await ask('GET', `/segments/${segment.id}/contacts/${unknownId}`)).status).toBe(404);
  expect((await ask('GET', `/segments/${unknownId}/contacts/${contact.id}`)).status).toBe(404);
});

describe('without a worker', () => {
  let idle: TestServer;
  let databaseAddress: DatabaseAddress;
  useTestDatabase({ hasNeighbour: true }, ({ address }) => {
    databaseAddress = address;
  });
  beforeAll(async () => {
    idle = await startTestServer({ database: databaseAddress });
  });
  afterAll(() => idle.stop());

  test('a segment is not ready, and says so; of many workers one computes it', async () => {
    const contact = await idle.request<ContactRecord>('POST', '/v1/contacts', {
      external_id: 'one',
      first_name: 'One',
    });
    const segment = await idle.request<SegmentRecord>('POST', '/v1/segments', {
      name: 'Later',
      conditions: named('One'),
    });
    const early = await idle.request<ErrorBody>('GET', `/v1/contacts?segment_id=${segment.body.id}`);
    expect([early.status, early.body.name]).toEqual([409, 'segment_not_ready']);
    const workers = Array.from({ length: 3 }, () => startSegmentUpkeep(idle.installation));
    await eventually(
      () => idle.request<SegmentRecord>('GET', `/v1/segments/${segment.body.id}`),
      ({ body }) => body.status === 'ready',
    );
    await Promise.all(workers.map((worker) => worker.stop()));
    const listed = await idle.request<Page<{ id: string }>>(
      'GET',
      `/v1/contacts?segment_id=${segment.body.id}`,
    );
    expect(listed.body.data.map(({ id }) => id)).toEqual([contact.body.id]);
  });

  test('changes wait to be followed, and what was followed is not looked at again', async () => {
    const { organizationId, installation } = idle;
    while (await followChanges(installation, organizationId)) {
      // Until nothing is left.
    }
    await idle.request('POST', '/v1/contacts', { external_id: 'two', first_name: 'One' });
    expect(await followChanges(installation, organizationId)).toBe(true);
    expect(await followChanges(installation, organizationId)).toBe(false);
  });

  const make = async (conditions: object) =>
    (await idle.request<SegmentRecord>('POST', '/v1/segments', { name: 'S', conditions })).body.id;
  const statusOf = async (id: string) =>
    (await idle.request<SegmentRecord>('GET', `/v1/segments/${id}`)).body.status;
  const listingOf = async (id: string) => (await idle.request('GET', `/v1/contacts?segment_id=${id}`)).status;
  const membersIn = async (id: string) =>
    (await idle.request<Page<{ id: string }>>('GET', `/v1/contacts?segment_id=${id}`)).body.data.map(
      (contact) => contact.id,
    );
  const computeAll = async () => {
    const never = new AbortController().signal;
    while (await computeNext(idle.installation, idle.organizationId, never)) {
      // Until nothing is due.
    }
  };
  /** As a newer release might have written them. */
  const spoil = (id: string, conditions: object) =>
    rowsOf(idle, 'update segments set conditions = $2, compute_at = now() where id = $1', [
      id,
      JSON.stringify(conditions),
    ]);

  test('a segment that fails takes along those that use it, and no other', async () => {
    const base = await make(named('One'));
    const user = await make({ type: 'segment', operator: 'not_in', ids: [base] });
    const top = await make({ type: 'segment', operator: 'in', ids: [user] });
    const other = await make(named('Two'));
    await computeAll();
    for (const id of [base, user, top, other]) expect(await statusOf(id)).toBe('ready');

    await spoil(base, { type: 'horoscope', sign: 'leo' });
    await idle.request('POST', '/v1/contacts', { external_id: 'three', first_name: 'Two' });
    while (await followChanges(idle.installation, idle.organizationId)) {
      // The first time it fails, the second it follows without the one that failed.
    }
    await computeAll();
    expect([await statusOf(base), await statusOf(user), await statusOf(top)]).toEqual([
      'failed',
      'computing',
      'computing',
    ]);
    for (const id of [base, user, top]) expect(await listingOf(id)).toBe(409);
    const listed = await idle.request<Page<{ external_id: string }>>(
      'GET',
      `/v1/contacts?segment_id=${other}`,
    );
    expect(listed.body.data.map(({ external_id }) => external_id)).toEqual(['three']);

    await spoil(base, named('One'));
    await computeAll();
    for (const id of [base, user, top])
      expect([await statusOf(id), await listingOf(id)]).toEqual(['ready', 200]);
  });

  test('a segment is computed and followed after those that it uses, though they were made after it', async () => {
    const name = unique('Late');
    const user = await make(named('Nobody'));
    const base = await make(named(name));
    await computeAll();
    const uses = await idle.request('PATCH', `/v1/segments/${user}`, { conditions: inSets('segment', base) });
    expect(uses.status).toBe(200);
    await idle.request('PATCH', `/v1/segments/${base}`, { conditions: { ...named(name) } });
    await computeAll();
    const { body } = await idle.request<ContactRecord>('POST', '/v1/contacts', {
      external_id: name,
      first_name: name,
    });
    while (await followChanges(idle.installation, idle.organizationId));
    for (const id of [base, user]) expect(await membersIn(id)).toEqual([body.id]);
  });

  test('a segment waits for one that it uses and that has failed, though others that it uses are ready', async () => {
    const [fine, base] = [await make(named('Two')), await make(named('One'))];
    await spoil(base, { type: 'horoscope', sign: 'leo' });
    await computeAll();
    const users = [await make(inSets('segment', fine, base)), await make(inSets('segment', base, fine))];
    await computeAll();
    expect([await statusOf(fine), await statusOf(base)]).toEqual(['ready', 'failed']);
    for (const user of users)
      expect([await statusOf(user), await listingOf(user)]).toEqual(['computing', 409]);
  });

  test.each<[string, (base: string, key: string) => object]>([
    ['is due at no time', (base) => inSets('segment', base)],
    [
      'is due later',
      (base, key) => ({
        type: 'group',
        match: 'any',
        conditions: [
          inSets('segment', base),
          { type: 'property', key, operator: 'within_last', value: { value: 2, unit: 'hour' } },
        ],
      }),
    ],
  ])('a segment that %s follows one that it uses and that changes with time', async (_when, conditionsOf) => {
    const name = unique('Time');
    const key = unique('p');
    await idle.request('POST', '/v1/properties', { key, name: 'P', type: 'date' });
    const contact = await idle.request<ContactRecord>('POST', '/v1/contacts', { external_id: name });
    const base = await make(named(name));
    const user = await make(conditionsOf(base, key));
    await computeAll();
    // Nothing notifies of this change, as nothing notifies of passing time.
    await rowsOf(idle, 'update contacts set first_name = $2 where id = $1', [contact.body.id, name]);
    await rowsOf(idle, 'update segments set compute_at = now() where id = $1', [base]);
    await computeAll();
    for (const id of [base, user]) expect(await membersIn(id)).toEqual([contact.body.id]);
  });

  test('a segment with several reasons to be computed again is, at the time of the first', async () => {
    const [key, event] = [unique('p'), unique('event')];
    await idle.request('POST', '/v1/properties', { key, name: 'P', type: 'date' });
    await idle.request('POST', '/v1/events', { name: event, schema: { fields: [] } });
    const id = await make({
      type: 'group',
      match: 'all',
      conditions: [
        { type: 'property', key, operator: 'within_last', value: { value: 2, unit: 'hour' } },
        { type: 'event', event },
      ],
    });
    const pauseMs = async () => {
      const [row] = await rowsOf<{ ms: number }>(
        idle,
        'select extract(epoch from compute_at - conditions_at) * 1000 as ms from segments where id = $1',
        [id],
      );
      return row!.ms;
    };
    const [made] = await rowsOf<{ at: Date }>(
      idle,
      'select conditions_at as at from segments where id = $1',
      [id],
    );
    // A minute later it was held for long enough to be told of all events; 40 seconds later it passes with the time.
    const clock = { ...idle.installation.clock, nowMs: () => made!.at.getTime() + 40_000 };
    await computeNext({ ...idle.installation, clock }, idle.organizationId, new AbortController().signal);
    expect(await statusOf(id)).toBe('ready');
    expect(Math.round(await pauseMs())).toBe(60_000);
  });

  test('a computation that was in the way of another transaction is done again, and has not failed', async () => {
    const { body: contact } = await idle.request<{ id: string }>('POST', '/v1/contacts', {
      first_name: 'In the way',
      external_id: 'in the way',
    });
    await rowsOf(
      idle,
      `create function give_way() returns trigger language plpgsql as $$
       begin raise exception 'another transaction was first' using errcode = 'deadlock_detected'; end $$`,
    );
    await rowsOf(
      idle,
      'create trigger give_way before insert on memberships for each row execute function give_way()',
    );
    const id = await make(named('In the way'));
    const never = new AbortController().signal;
    await expect(computeNext(idle.installation, idle.organizationId, never)).rejects.toThrow(
      'another transaction was first',
    );
    expect(await statusOf(id)).toBe('computing');
    await rowsOf(idle, 'drop function give_way cascade');
    await computeAll();
    expect(await membersIn(id)).toEqual([contact.id]);
  });

  test('a segment that gets other conditions takes along those that use it until it is computed', async () => {
    const { body: contact } = await idle.request<{ id: string }>('POST', '/v1/contacts', {
      first_name: 'One',
      external_id: 'of other conditions',
    });
    const base = await make(named('One'));
    const user = await make({ type: 'segment', operator: 'not_in', ids: [base] });
    await computeAll();
    await idle.request('PATCH', `/v1/segments/${base}`, { conditions: named('Two') });
    expect([await listingOf(base), await listingOf(user)]).toEqual([409, 409]);
    await computeAll();
    const { body } = await idle.request<{ is_member: boolean }>(
      'GET',
      `/v1/segments/${user}/contacts/${contact.id}`,
    );
    expect([await listingOf(user), body.is_member]).toEqual([200, true]);
  });

  test('a computation that was overtaken by other conditions, or by a deletion, leaves nothing', async () => {
    const changed = await make(named('One'));
    const { database, clock: time } = idle.installation;
    const during = async (id: string, act: () => Promise<unknown>) => {
      // Acts at the moment when a computation has written its members and has not yet marked them as complete.
      let isActed = false;
      const nowMs = () => time.nowMs();
      const monotonicMs = () => time.monotonicMs();
      const stepping = {
        ...idle.installation,
        clock: { ...time, nowMs, monotonicMs },
        database: {
          ...database,
          asOrganizations: <Result>(
            ids: readonly string[],
            work: Parameters<typeof database.asOrganizations<Result>>[1],
          ) =>
            database.asOrganizations<Result>(ids, (transaction) =>
              work({
                ...transaction,
                rows: async (statement, values) => {
                  if (!isActed && statement.text.includes('set is_ready')) {
                    isActed = true;
                    await act();
                  }
                  return transaction.rows(statement, values);
                },
              }),
            ),
        },
      };
      await rowsOf(idle, 'update segments set compute_at = now() where id = $1', [id]);
      expect(await computeNext(stepping, idle.organizationId, new AbortController().signal)).toBe(true);
      expect(isActed).toBe(true);
    };
    await during(changed, () =>
      idle.request('PATCH', `/v1/segments/${changed}`, { conditions: named('Nobody') }),
    );
    expect([await statusOf(changed), await listingOf(changed)]).toEqual(['computing', 409]);
    await computeAll();
    expect([await statusOf(changed), await listingOf(changed)]).toEqual(['ready', 200]);

    const deleted = await make(named('One'));
    await during(deleted, () => idle.request('DELETE', `/v1/segments/${deleted}`));
    expect(await rowsOf(idle, 'select from memberships where set_id = $1', [deleted])).toEqual([]);
  });

  test('trouble in one organization is its own', async () => {
    const others = await Promise.all(
      Array.from({ length: 3 }, (_none, index) => createSender(idle.installation, `of-${index}.example`)),
    );
    const headers = others.map(({ key }) => ({ authorization: `Bearer ${key}` }));
    const segments: string[] = [];
    for (const header of headers) {
      const body = { name: 'S', conditions: named('Ann') };
      segments.push((await idle.request<SegmentRecord>('POST', '/v1/segments', body, header)).body.id);
    }
    const upkeep = startSegmentUpkeep(idle.installation);
    const isReady = async (index: number) =>
      (await idle.request<SegmentRecord>('GET', `/v1/segments/${segments[index]}`, undefined, headers[index]))
        .body;
    await eventually(
      () => Promise.all([0, 1, 2].map(isReady)),
      (records) => records.every(({ status }) => status === 'ready'),
    );
    // Its changes cannot be taken off: a row that is no list of contacts.
    await rowsOf(idle, 'alter table contact_changes drop constraint contact_changes_contact_ids_check');
    await rowsOf(
      idle,
      `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'poison'; end $$`,
    );
    await rowsOf(
      idle,
      `create trigger refuse before delete on contact_changes for each row
       when (old.organization_id = '${others.map(({ organizationId }) => organizationId).sort()[0]!}')
       execute function refuse()`,
    );
    for (const header of headers) {
      await idle.request('POST', '/v1/contacts', { external_id: 'ann', first_name: 'Ann' }, header);
    }
    await eventually(
      () => Promise.all([0, 1, 2].map(isReady)),
      (records) => records.filter(({ contact_count: count }) => count === 1).length === 2,
    );
    await rowsOf(idle, 'drop trigger refuse on contact_changes');
    await upkeep.stop();
  });

  test('stopping does not wait for a computation, and leaves it to the next', async () => {
    const id = await make(named('One'));
    // Following is not what is stopped here.
    await rowsOf(idle, 'delete from contact_changes');
    await rowsOf(
      idle,
      `create function dawdle() returns trigger language plpgsql as $$
       begin
         perform pg_advisory_xact_lock(7);
         return null;
       end $$`,
    );
    await rowsOf(
      idle,
      'create trigger dawdle after insert on memberships for each statement execute function dawdle()',
    );
    const inTheWay = new pg.Client(clientConfigOf(databaseAddress));
    await inTheWay.connect();
    await inTheWay.query('select pg_advisory_lock(7)');
    // The computation has one connection, so that a statement after the stop comes after its cancelling.
    const database = openDatabase({ address: databaseAddress, connectionsMax: 2 });
    const upkeep = startSegmentUpkeep({ ...idle.installation, database });
    await eventually(
      () =>
        rowsOf(
          idle,
          "select from pg_stat_activity where datname = current_database() and wait_event = 'advisory'",
        ),
      (rows) => rows.length > 0,
    );
    const stopped = upkeep.stop();
    await database.rows(unpreparedStatement('select 1'));
    await inTheWay.end();
    await stopped;
    await database.close();
    await rowsOf(idle, 'drop trigger dawdle on memberships');
    expect(await statusOf(id)).toBe('computing');
    await computeAll();
    expect(await statusOf(id)).toBe('ready');
  });
});
