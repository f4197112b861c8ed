import { once } from 'node:events';
import { request as httpRequest } from 'node:http';
import { connect } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createApiKey, updateOrganization } from '../../src/accounts/accounts.ts';
import { dropOldRequests } from '../../src/request-log/request-log.ts';
import { anEmail, rowsOf } from '../support/email-journey.ts';
import { createManualClock, type ManualClock } from '../support/manual-clock.ts';
import { androidApp, aPushContact, register, setUpPush } from '../support/push-journey.ts';
import { createSender, startTestServer, type TestResponse, type TestServer } from '../support/server.ts';

/** What support asks first: what did my program send, and why was it refused? */

type Entry = {
  id: string;
  created_at: string;
  method: string;
  path: string;
  route: string | null;
  query: unknown;
  status: number | null;
  error_name: string | null;
  message: string | null;
  api_key: { id: string; name: string } | null;
  remote_address: string | null;
  user_agent: string | null;
  ms: number;
  idempotency: { key: string; replayed: boolean } | null;
  resource_id: string | null;
  request_body: unknown;
  left_out: number;
};
type Page = { object: string; has_more: boolean; data: Entry[] };

const dayMs = 86_400_000;
// Later than the first partitions, of which the first reaches back to the beginning.
const start = Date.parse('2040-03-01T12:00:00.000Z');
const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

let clock: ManualClock;
let server: TestServer;
let other: { organizationId: string; key: string };

beforeAll(async () => {
  clock = createManualClock(start);
  server = await startTestServer({ clock });
  other = await createSender(server.installation, 'elsewhere.example');
  for (const id of [server.organizationId, other.organizationId])
    await updateOrganization(server.installation, id, { requestsPerWindow: 100_000 });
});
afterAll(() => server.stop());

const withKey = (key: string) => ({ authorization: `Bearer ${key}` });
const ofOther = () => withKey(other.key);

/** Bursts are over, and what was held back is written. */
async function settle(): Promise<void> {
  clock.advance(120_000);
  await server.request('GET', '/v1/logs?limit=1');
}

const idOf = ({ headers }: TestResponse<unknown>) => headers.get('x-request-id')!;

async function logged(response: TestResponse<unknown>, headers = {}): Promise<Entry> {
  const found = await server.request<Entry>('GET', `/v1/logs/${idOf(response)}`, undefined, headers);
  expect(found.status).toBe(200);
  return found.body;
}

async function listAll(query = '', headers: Readonly<Record<string, string>> = {}): Promise<Entry[]> {
  const entries: Entry[] = [];
  // Ends with the last page.
  for (let after = ''; ;) {
    const { status, body } = await server.request<Page>(
      'GET',
      `/v1/logs?limit=100${query}${after}`,
      undefined,
      headers,
    );
    expect([status, query]).toEqual([200, query]);
    entries.push(...body.data);
    if (!body.has_more) return entries;
    after = `&after=${body.data.at(-1)!.id}`;
  }
}

test('there is nothing before anything was asked', async () => {
  expect((await server.request('GET', '/v1/logs')).body).toEqual({
    object: 'list',
    has_more: false,
    data: [],
  });
});

describe('a refused request', () => {
  test('is shown as it was asked, with the reason, and with what its fields were', async () => {
    const sent = {
      ...anEmail({ from: 'news@unknown.example', to: ['ann@example.com'], subject: 'Your code is 4711' }),
      variables: { code: '4711' },
      category: 'codes',
    };
    const refused = await server.request('POST', '/v1/email/send', sent, {
      'idempotency-key': 'order 7',
      'user-agent': 'acme/1.0',
    });
    expect(refused.status).toBe(400);
    const { ms, message, request_body: body, ...entry } = await logged(refused);
    expect(entry).toEqual({
      id: idOf(refused),
      created_at: new Date(clock.nowMs()).toISOString(),
      source: 'api',
      method: 'POST',
      path: '/v1/email/send',
      route: '/v1/email/send',
      query: null,
      status: 400,
      error_name: (refused.body as { name: string }).name,
      api_key: { id: expect.any(String), name: 'Test key' },
      remote_address: '127.0.0.1',
      user_agent: 'acme/1.0',
      idempotency: { key: 'order 7', replayed: false },
      resource_id: null,
      left_out: 0,
    });
    expect(ms).toBe(0);
    expect(message).toBe((refused.body as { message: string }).message);
    expect(body).toMatchObject({
      from: '…@unknown.example',
      to: ['…@example.com'],
      subject: '[17 characters]',
      variables: { code: '[4 characters]' },
      category: 'codes',
    });
    expect(JSON.stringify(body)).not.toMatch(/ann|4711/);
  });

  test.each<[string, () => Promise<TestResponse<unknown>>, number, Partial<Entry>]>([
    [
      'by its schema',
      () => server.request('POST', '/v1/lists', { name: 5, unknown: 'anything' }),
      422,
      { error_name: 'validation_error', request_body: { name: 5 } },
    ],
    [
      'since it is no JSON',
      () => server.request('POST', '/v1/lists', '{"name": '),
      400,
      { request_body: null },
    ],
    [
      'since it is too large',
      () => server.request('POST', '/v1/lists', `{"name":"${'a'.repeat(1_100_000)}"}`),
      413,
      { error_name: 'payload_too_large', request_body: null },
    ],
    [
      'by the schema, in the thread for large bodies',
      () => server.request('POST', '/v1/lists', `{"name":"${'a'.repeat(600_000)}"}`),
      422,
      { request_body: null },
    ],
    [
      'for an id that is none of theirs',
      () => server.request('PATCH', `/v1/lists/${unknownId.toUpperCase()}`, { name: 'New' }),
      404,
      {
        path: `/v1/lists/${unknownId}`,
        route: '/v1/lists/:id',
        resource_id: unknownId,
        request_body: { name: 'New' },
      },
    ],
    [
      'for an id that is no id',
      () => server.request('GET', '/v1/contacts/ann@example.com'),
      404,
      { path: '/v1/contacts/…', route: '/v1/contacts/:id', resource_id: null },
    ],
    [
      'for a path that there is not',
      () => server.request('GET', '/v1/emails/ann%40example.com?email=ann@example.com'),
      404,
      { path: '/v1/emails/…', route: null, query: null },
    ],
    ['for a method that there is not', () => server.request('PUT', '/v1/lists'), 404, { method: 'PUT' }],
    [
      'by its query',
      () => server.request('GET', '/v1/contacts?email=ann@example.com&limit=0&search=ann&other=1'),
      422,
      {
        path: '/v1/contacts',
        query: { limit: '0', search: '[3 characters]', email: '…@example.com' },
        request_body: null,
      },
    ],
    [
      'by another parameter that is given twice',
      () => server.request('GET', '/v1/contacts?limit=1&limit=2'),
      422,
      { query: { limit: '[2 items]' } },
    ],
    [
      'for its type',
      () => server.request('POST', '/v1/lists', 'name=x', { 'content-type': 'text/plain' }),
      400,
      { request_body: null },
    ],
    ['since it cannot be decoded', () => server.request('GET', '/v1/lists/%zz'), 404, { route: null }],
  ])('%s', async (_reason, ask, status, expected) => {
    const refused = await ask();
    expect(refused.status).toBe(status);
    expect(await logged(refused)).toMatchObject({ status, ...expected });
  });

  test('is logged for the organization of the key that lacks a scope, or comes from elsewhere', async () => {
    const { organizationId, installation } = server;
    const make = (name: string, more = {}) =>
      createApiKey(installation, { organizationId, name, scopes: ['sms:read'], expiresAt: null, ...more });
    const { id, key } = await make('Narrow');
    const lacking = await server.request('GET', '/v1/contacts', undefined, withKey(key));
    expect(await logged(lacking)).toMatchObject({ status: 403, api_key: { id, name: 'Narrow' } });
    const bound = await make('Bound', { allowedNetworks: ['192.0.2.0/24'] });
    const foreign = await server.request('GET', '/v1/contacts', undefined, withKey(bound.key));
    expect(await logged(foreign)).toMatchObject({ status: 403, api_key: { id: bound.id } });
    const ofKey = await listAll(`&key_id=${bound.id}`);
    expect(ofKey.map((entry) => entry.id)).toEqual([idOf(foreign)]);
  });

  test('of a device says what it asked, and not from where; what was carried out is not told of', async () => {
    await setUpPush(server);
    const app = androidApp('reader', { contact_id: await aPushContact(server) });
    const { device_secret: secret } = await register(server, app);
    const report = (events: unknown[]) =>
      server.request('POST', '/v1/push/engagements', { installation_id: 'reader', events }, withKey(secret!));
    const refused = await report([]);
    expect(refused.status).toBe(422);
    expect(await logged(refused)).toMatchObject({
      status: 422,
      api_key: null,
      remote_address: null,
      user_agent: null,
      request_body: { installation_id: '[6 characters]', events: [] },
    });
    const taken = await report([
      { event_id: '1', message_id: unknownId, type: 'displayed', occurred_at: new Date(start).toISOString() },
    ]);
    expect(taken.status).toBe(202);
    expect((await server.request('GET', `/v1/logs/${idOf(taken)}`)).status).toBe(404);
  });

  test('whose client leaves before its answer has no status', async () => {
    const socket = connect(Number(new URL(server.url).port), '127.0.0.1');
    await once(socket, 'connect');
    socket.write(
      `POST /v1/tags HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ${server.key}\r\n` +
        'content-type: application/json\r\ncontent-length: 100\r\n\r\n{"name"',
    );
    await expect.poll(() => server.held().routesArriving).toBe(1);
    socket.destroy();
    await expect
      .poll(async () => (await listAll('&path=/v1/tags')).map(({ status, method }) => [status, method]))
      .toEqual([[null, 'POST']]);
  });

  test('belongs to nobody without a valid key', async () => {
    const headers = withKey('pst_unknown');
    const refused = await server.request('GET', '/v1/contacts', undefined, headers);
    expect(refused.status).toBe(401);
    for (const asking of [{}, ofOther()])
      expect((await server.request('GET', `/v1/logs/${idOf(refused)}`, undefined, asking)).status).toBe(404);
  });
});

describe('a request that was carried out', () => {
  test('is shown with what it made, and without what was sent', async () => {
    const made = await server.request<{ id: string }>('POST', '/v1/contacts', {
      first_name: 'Ann',
      email: 'ann@example.com',
    });
    const entry = await logged(made);
    expect(entry).toMatchObject({
      status: 201,
      error_name: null,
      message: null,
      resource_id: made.body.id,
      request_body: null,
      idempotency: null,
    });
    const read = await server.request('GET', `/v1/contacts/${made.body.id}`);
    expect((await listAll(`&resource_id=${made.body.id}`)).map(({ id }) => id)).toEqual([
      idOf(read),
      idOf(made),
    ]);
  });

  test('says whether it was a repetition', async () => {
    const headers = { 'idempotency-key': 'of ann@example.com' };
    const first = await server.request<{ id: string }>('POST', '/v1/email/send', anEmail(), headers);
    const again = await server.request<{ id: string }>('POST', '/v1/email/send', anEmail(), headers);
    expect([first.status, again.status]).toEqual([202, 202]);
    for (const [response, replayed] of [
      [first, false],
      [again, true],
    ] as const)
      expect(await logged(response)).toMatchObject({
        idempotency: { key: 'of …@example.com', replayed },
        resource_id: first.body.id,
      });
  });

  test('is not shown where it was a look into the log', async () => {
    const look = await server.request('GET', '/v1/logs');
    expect((await server.request('GET', `/v1/logs/${idOf(look)}`)).status).toBe(404);
    const refused = await server.request('GET', '/v1/logs?status=9xx');
    expect(await logged(refused)).toMatchObject({ status: 422, query: { status: '9xx' } });
  });
});

test('each organization sees its own, whatever it asks for', async () => {
  await server.request('POST', '/v1/lists', { name: 5 }, ofOther());
  const [mine, theirs] = [await listAll(), await listAll('', ofOther())];
  expect(theirs.map(({ path }) => path)).toEqual(['/v1/lists', expect.stringMatching('/v1/logs/')]);
  expect(mine.filter(({ id }) => theirs.some((each) => each.id === id))).toEqual([]);
  expect((await server.request('GET', `/v1/logs/${theirs[0]!.id}`)).status).toBe(404);
  expect((await server.request('GET', `/v1/logs/${unknownId}`)).text).toBe(
    (await server.request('GET', `/v1/logs/${theirs[0]!.id}`)).text,
  );
  expect(await listAll(`&key_id=${theirs[0]!.api_key!.id}`)).toEqual([]);
  expect(await listAll(`&request_id=${theirs[0]!.id}`)).toEqual([]);
});

test('filters give what they say, page by page', async () => {
  await settle();
  const all = await listAll();
  const filters: [string, (entry: Entry) => boolean][] = [
    ['method=POST', ({ method }) => method === 'POST'],
    ['path=/v1/lists', ({ path }) => path === '/v1/lists'],
    ['path=/v1/lists/:id', ({ route }) => route === '/v1/lists/:id'],
    ['status=422', ({ status }) => status === 422],
    ['status=4xx', ({ status }) => status !== null && status >= 400 && status < 500],
    ['status=2xx', ({ status }) => status !== null && status >= 200 && status < 300],
    ['status=5xx', ({ status }) => status !== null && status >= 500],
    [`resource_id=${unknownId}`, ({ resource_id }) => resource_id === unknownId],
    [`request_id=${all[3]!.id}`, ({ id }) => id === all[3]!.id],
    [
      'method=POST&status=4xx&path=/v1/lists',
      (entry) => entry.method === 'POST' && entry.path === '/v1/lists' && entry.status! >= 400,
    ],
  ];
  for (const [query, isWanted] of filters) {
    const found: string[] = [];
    for (let after = ''; ;) {
      const { body } = await server.request<Page>('GET', `/v1/logs?limit=3&${query}${after}`);
      found.push(...body.data.map(({ id }) => id));
      if (!body.has_more) break;
      after = `&after=${body.data.at(-1)!.id}`;
    }
    expect([query, found]).toEqual([query, all.filter(isWanted).map(({ id }) => id)]);
  }
  const { body } = await server.request<Page>('GET', `/v1/logs?limit=2&before=${all[2]!.id}`);
  expect(body.data.map(({ id }) => id)).toEqual([all[0]!.id, all[1]!.id]);
});

test('a flood is logged in part, and says how large it was', async () => {
  await settle();
  const last = (await listAll('', ofOther())).length;
  await updateOrganization(server.installation, other.organizationId, { requestsPerWindow: 1 });
  clock.advance(60_000);
  const statuses: number[] = [];
  for (let asked = 0; asked < 60; asked += 1)
    statuses.push((await server.request('GET', '/v1/lists', undefined, ofOther())).status);
  expect(statuses.filter((status) => status === 429).length).toBeGreaterThan(50);
  await updateOrganization(server.installation, other.organizationId, { requestsPerWindow: 100_000 });
  await settle();
  const entries = (await listAll('', ofOther())).slice(0, -last || undefined);
  const limited = entries.filter(({ status }) => status === 429);
  expect(limited.length).toBeLessThan(30);
  expect(limited.reduce((sum, { left_out }) => sum + 1 + left_out, 0)).toBe(
    statuses.filter((status) => status === 429).length,
  );
});

describe('what a client can send in its head', () => {
  const raw = (path: string, headers: Record<string, string>) =>
    new Promise<TestResponse<unknown>>((resolve, reject) => {
      const asking = httpRequest(
        `${server.url}/`,
        { path, headers: { authorization: `Bearer ${server.key}`, ...headers } },
        (response) => {
          response.resume().on('end', () => {
            const given = new Headers({ 'x-request-id': String(response.headers['x-request-id']) });
            resolve({ status: response.statusCode!, headers: given, body: null, text: '' });
          });
        },
      );
      asking.on('error', reject).end();
    });

  test.each([
    ['NUL and half a surrogate pair in the path', '/v1/lists/%00%ED%A0%80?search=%00%ED%A0%80', {}],
    ['octets above ASCII in a header', '/v1/lists?limit=0', { 'user-agent': 'caf\u00e9 \u00ff' }],
    ['a user agent of 8 kB', '/v1/lists?limit=0', { 'user-agent': 'x'.repeat(8_000) }],
    ['a path of 8 kB', `/v1/${'x/'.repeat(4_000)}`, {}],
    ['a query of 8 kB', `/v1/lists?limit=${'9'.repeat(8_000)}`, {}],
    ['a key in the path', `/v1/pst_abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG`, {}],
  ])('%s is stored short', async (_what, path, headers) => {
    const refused = await raw(path, headers);
    expect(refused.status).toBeGreaterThanOrEqual(400);
    const entry = await logged(refused);
    expect(JSON.stringify(entry).length).toBeLessThan(3_000);
    expect(JSON.stringify(entry)).not.toContain('abcdefghijkl');
  });
});

test('is off for an organization for which the operator has switched it off', async () => {
  await updateOrganization(server.installation, server.organizationId, { hasRequestLog: false });
  const refused = await server.request('POST', '/v1/lists', { name: 5 });
  const theirs = await server.request('POST', '/v1/lists', { name: 5 }, ofOther());
  expect((await server.request('GET', `/v1/logs/${idOf(refused)}`)).status).toBe(404);
  await logged(theirs, ofOther());
  await updateOrganization(server.installation, server.organizationId, { hasRequestLog: true });
  await logged(await server.request('POST', '/v1/lists', { name: 5 }));
});

test('after a week nothing is shown, and a day later its partition is gone', async () => {
  await settle();
  const before = await listAll();
  expect(before.length).toBeGreaterThan(20);
  clock.advance(7 * dayMs);
  await server.request('POST', '/v1/lists', { name: 5 });
  expect(await listAll()).toHaveLength(1);
  expect((await server.request('GET', `/v1/logs/${before[0]!.id}`)).status).toBe(404);
  const count = async () =>
    (await rowsOf(server, 'select from request_log where organization_id = $1', [server.organizationId]))
      .length;
  await dropOldRequests(server.installation);
  expect(await count()).toBeGreaterThan(20);
  clock.advance(dayMs);
  await dropOldRequests(server.installation);
  // What was asked a day ago, and the look for one that is gone.
  expect(await count()).toBe(2);
});
