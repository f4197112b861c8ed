/**
 * Conditions whose top level is `any` once reached into every organization: in `organization_id = $1 and a or b`, what
 * follows the `or` holds for the rows of all. So every tree is tried beside an organization whose contacts have the
 * same addresses, whose lists have the same names, and whose properties have the same numbers and other types.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { authorize, eventually, rowsOf, type Sender } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

const names = ['ann', 'ben', 'cid'] as const;
type Name = (typeof names)[number];

/** A condition, and for whom of the three it holds. */
type Tried = { condition: object; holdsFor: ReadonlySet<Name> };

let server: TestServer;
let contactIds: Map<Name, string>;
let leaves: { isAnn: Tried; scoresHigh: Tried; isCustomer: Tried };

beforeAll(async () => {
  server = await startTestServer({ worker: true });
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 100_000 });
  const neighbour = await createSender(server.installation, 'neighbour.example');
  await fillNeighbour(neighbour);

  await create('/properties', { key: 'score', name: 'Score', type: 'number' });
  const customers = await create('/lists', { name: 'Customers' });
  contactIds = new Map();
  for (const [index, name] of names.entries()) {
    const body = { email: `${name}@example.com`, properties: { score: 10 * index } };
    contactIds.set(
      name,
      await create('/contacts', { ...body, ...(name === 'ben' && { list_ids: [customers] }) }),
    );
  }
  leaves = {
    isAnn: tried({ type: 'field', field: 'email', operator: 'eq', value: 'ann@example.com' }, 'ann'),
    scoresHigh: tried({ type: 'property', key: 'score', operator: 'gte', value: 20 }, 'cid'),
    isCustomer: tried({ type: 'list', operator: 'in', ids: [customers] }, 'ben'),
  };
});
afterAll(() => server.stop());

/** More contacts than are written at once, all with the values that the others' conditions look for. */
async function fillNeighbour(neighbour: Sender & { organizationId: string }) {
  await updateOrganization(server.installation, neighbour.organizationId, { requestsPerWindow: 100_000 });
  await create('/properties', { key: 'score', name: 'Score', type: 'string' }, neighbour);
  const customers = await create('/lists', { name: 'Customers' }, neighbour);
  const first = await create(
    '/contacts',
    {
      email: 'ann@example.com',
      properties: { score: 'n/a' },
      list_ids: [customers],
    },
    neighbour,
  );
  await rowsOf(
    server,
    `insert into contacts (organization_id, id, email, email_key, properties, unsubscribed_channels, created_at, updated_at)
     select organization_id, gen_random_uuid(), name || '@example.com', name || '@example.com', properties,
       array['email'], now(), now()
     from contacts
     cross join (
       select unnest(array['ben', 'cid']) as name
       union all
       select 'reader' || number from generate_series(1, 250) number
     ) others
     where id = $1`,
    [first],
  );
}

async function create(path: string, body: object, sender?: Sender): Promise<string> {
  const response = await server.request<{ id: string }>('POST', `/v1${path}`, body, authorize(sender));
  expect([path, response.status, response.text]).toMatchObject([path, 201, expect.any(String)]);
  return response.body.id;
}

function tried(condition: object, ...holding: Name[]): Tried {
  return { condition, holdsFor: new Set(holding) };
}

function group(match: 'all' | 'any' | 'none', ...parts: Tried[]): Tried {
  const holdsIn = (name: Name) => parts.filter(({ holdsFor }) => holdsFor.has(name)).length;
  const tests = {
    all: (name: Name) => holdsIn(name) === parts.length,
    any: (name: Name) => holdsIn(name) > 0,
    none: (name: Name) => holdsIn(name) === 0,
  };
  return {
    condition: { type: 'group', match, conditions: parts.map(({ condition }) => condition) },
    holdsFor: new Set(names.filter(tests[match])),
  };
}

const trees: Record<string, () => Tried> = {
  'a leaf': () => leaves.scoresHigh,
  any: () => group('any', leaves.isAnn, leaves.scoresHigh),
  all: () => group('all', leaves.isAnn, group('none', leaves.isCustomer)),
  none: () => group('none', leaves.isCustomer, leaves.scoresHigh),
  'any of any': () => group('any', group('any', leaves.isAnn, leaves.isCustomer), leaves.scoresHigh),
  'any of none': () => group('any', group('none', leaves.scoresHigh, leaves.isAnn), leaves.isCustomer),
  'any of one': () => group('any', group('any', leaves.scoresHigh)),
  'none of any': () => group('none', group('any', leaves.isAnn, leaves.scoresHigh)),
  'all of any': () =>
    group('all', group('any', leaves.isAnn, leaves.isCustomer), group('none', leaves.scoresHigh)),
};

type Segment = { status: string; contact_count: number };

test.each(Object.keys(trees))('a segment of %s has members of its own organization alone', async (name) => {
  const { condition, holdsFor } = trees[name]!();
  const members = names.filter((each) => holdsFor.has(each));
  const memberIds = members.map((each) => contactIds.get(each)!);

  const preview = await server.request<{ contact_count: number; sample: { email: string }[] }>(
    'POST',
    '/v1/segments/preview',
    { conditions: condition },
  );
  expect([preview.status, preview.body.contact_count]).toEqual([200, members.length]);
  expect(preview.body.sample.map(({ email }) => email).sort()).toEqual(
    members.map((each) => `${each}@example.com`),
  );

  const id = await create('/segments', { name, conditions: condition });
  const read = async () => (await server.request<Segment>('GET', `/v1/segments/${id}`)).body;
  const computed = await eventually(read, ({ status }) => status !== 'computing');
  expect(computed).toMatchObject({ status: 'ready', contact_count: members.length });
  expect(await membershipsOf(id)).toEqual([...memberIds].sort());

  for (const [each, contactId] of contactIds) {
    const explained = await server.request('GET', `/v1/segments/${id}/contacts/${contactId}`);
    const holds = holdsFor.has(each);
    expect(explained.body).toMatchObject({ is_member: holds, holds });
  }

  const campaign = await create('/email/campaigns', {
    ...{ name, from: 'hello@postillion.test', subject: 'News', text: 'News', segment_ids: [id] },
  });
  const counted = await server.request('POST', `/v1/email/campaigns/${campaign}/preview`);
  expect(counted.body).toMatchObject({ audience: members.length });
  expect((await server.request('POST', `/v1/email/campaigns/${campaign}/send`, {})).status).toBe(200);
  await eventually(
    async () => (await server.request<{ status: string }>('GET', `/v1/email/campaigns/${campaign}`)).body,
    ({ status }) => status === 'sent',
  );
  const recipients = await rowsOf<{ address: string }>(
    server,
    `select r.address
     from recipients r
     join campaigns c on c.message_id = r.message_id
     where c.id = $1
     order by 1`,
    [campaign],
  );
  expect(recipients.map(({ address }) => address)).toEqual(members.map((each) => `${each}@example.com`));
});

test('contacts that change are looked at again among those of their organization alone', async () => {
  const { condition } = trees.any!();
  const id = await create('/segments', { name: 'Followed', conditions: condition });
  await eventually(
    async () => (await server.request<Segment>('GET', `/v1/segments/${id}`)).body,
    ({ status }) => status === 'ready',
  );
  const dee = await create('/contacts', { email: 'dee@example.com', properties: { score: 99 } });
  const expected = [contactIds.get('ann')!, contactIds.get('cid')!, dee].sort();
  await eventually(
    () => membershipsOf(id),
    (members) => members.includes(dee),
  );
  expect(await membershipsOf(id)).toEqual(expected);
  await server.request('DELETE', `/v1/contacts/${dee}`);
});

/** Of all organizations, as they stand in the table. */
async function membershipsOf(setId: string): Promise<string[]> {
  const rows = await rowsOf<{ contact_id: string }>(
    server,
    'select contact_id from memberships where set_id = $1 order by 1',
    [setId],
  );
  return rows.map(({ contact_id }) => contact_id);
}
