/** Who may see what, generated from the table of routes: a new route is covered as soon as it is in the table. */
import { addApprovedSender } from '../support/sms-journey.ts';
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createApiKey, scopes, updateOrganization } from '../../src/accounts/accounts.ts';
import { startDomainChecks } from '../../src/domains/jobs.ts';
import { emptyBody, type Route, routeKey, scopeOfDevices } from '../../src/platform/http/route.ts';
import { listRoutes } from '../../src/roles/api.ts';
import { defineEvent } from '../support/event-journey.ts';
import { addChatTemplate, written } from '../support/chat-app-journey.ts';
import { androidApp, register, setUpPush } from '../support/push-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: { organizationId: string; key: string };
let routes: Route[];
let checks: ReturnType<typeof startDomainChecks>;
const keyOfScope = new Map<string, string>();

const otherDomain = 'elsewhere.example';
const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

beforeAll(async () => {
  server = await startTestServer();
  const { installation, organizationId } = server;
  routes = listRoutes(installation);
  checks = startDomainChecks(installation);
  other = await createSender(installation, otherDomain);
  for (const id of [organizationId, other.organizationId]) {
    await updateOrganization(installation, id, { requestsPerWindow: 100_000 });
  }
  await setUpPush(server);
  await setUpPush(server, other.organizationId);
  await addApprovedSender(server, 'Mine');
  await addApprovedSender(server, otherSender, other.organizationId);
  await defineEvent(server, { name: 'known' });
  for (const scope of scopes) {
    const { key } = await createApiKey(installation, {
      organizationId,
      name: scope,
      scopes: [scope],
      expiresAt: null,
    });
    keyOfScope.set(scope, key);
  }
});

afterAll(async () => {
  await checks.stop();
  await server.stop();
});

/** The gallery comes with the product and belongs to no organization. */
function isEverybodys({ path }: Route): boolean {
  return path.startsWith('/templates/gallery');
}

function pathOf(route: Route, id = unknownId, contactId = unknownId): string {
  // Where a path names nothing but a contact, the id is the contact's.
  const ofContact = route.path.includes(':id') ? contactId : id;
  return `/v1${route.path.replace(':contact_id', ofContact).replace(/:\w+/g, id)}`;
}

function withKey(key: string): Record<string, string> {
  return { authorization: `Bearer ${key}` };
}

const text = { to: '+4915112345678', body: 'Hello Ann' };
const otherSender = 'Theirs';
const letter = { from_name: 'A', to: ['ann@example.com'], subject: 'Hello', text: 'Hello Ann' };

/** A resource of the other organization for each path that names one. A new path needs an entry. */
const makeForeign: Record<string, () => Promise<string>> = {
  '/email/:id': async () => {
    const { status, body } = await server.request<{ id: string }>(
      'POST',
      '/v1/email/send',
      { ...letter, from: `a@${otherDomain}` },
      withKey(other.key),
    );
    expect(status).toBe(202);
    return body.id;
  },
  '/email/domains/:id': async () => {
    const { status, body } = await server.request<{ id: string }>(
      'POST',
      '/v1/email/domains',
      { name: `theirs-${randomUUID()}.example` },
      withKey(other.key),
    );
    expect(status).toBe(200);
    return body.id;
  },
};

/** With a delivery of an event that has the same id, so that a path with both is one of theirs. */
makeForeign['/webhooks/:id'] = async () => {
  const { status, body } = await server.request<{ id: string }>(
    'POST',
    '/v1/webhooks',
    { kind: 'url', url: 'http://127.0.0.1:9999/', events: ['sms.failed'] },
    withKey(other.key),
  );
  expect(status).toBe(201);
  await server.installation.database.rows(
    {
      text: `insert into webhook_deliveries
         (organization_id, webhook_id, event_id, position, type, status, attempts, updated_at)
       values ($1, $2, $2, 1, 'sms.failed', 'failed', 10, now())`,
    },
    [other.organizationId, body.id],
  );
  return body.id;
};

const notification = { title: 'Hello', body: 'Hello' };

let made = 0;
const aName = () => `theirs ${(made += 1)}`;

const aChatTemplate = () => ({
  name: aName().replace(' ', '_'),
  language: 'en',
  category: 'utility',
  components: [{ type: 'body', text: 'Hello' }],
});

const hasEmail = { type: 'field', field: 'email', operator: 'is_set' };

for (const [path, body] of [
  ['/contacts', () => ({ external_id: aName() })],
  ['/templates', () => ({ name: aName(), text: 'Hello' })],
  ['/chatapp/templates', () => aChatTemplate()],
  ['/lists', () => ({ name: aName() })],
  ['/tags', () => ({ name: aName() })],
  ['/suppressions', () => ({ channel: 'email', address: `${aName().replace(' ', '_')}@example.com` })],
  ['/events', () => ({ name: aName().replace(' ', '_') })],
  ['/properties', () => ({ key: aName().replace(' ', '_'), name: 'Theirs', type: 'string' })],
  [
    '/segments',
    () => ({
      name: aName(),
      conditions: hasEmail,
    }),
  ],
] as const) {
  makeForeign[`${path}/:id`] = async () => {
    const created = await server.request<{ id: string }>('POST', `/v1${path}`, body(), withKey(other.key));
    expect([path, created.status]).toEqual([path, 201]);
    return created.body.id;
  };
}

/** By the operator: the API only lists them. */
makeForeign['/sms/senders/:id'] = () => addApprovedSender(server, aName(), other.organizationId);

makeForeign['/sms/:id'] = async () => {
  const { status, body } = await server.request<{ id: string }>(
    'POST',
    '/v1/sms/send',
    { ...text, from: otherSender },
    withKey(other.key),
  );
  expect(status).toBe(202);
  return body.id;
};

makeForeign['/push/:id'] = async () => {
  const contactId = await makeForeign['/contacts/:id']!();
  await register(server, { ...androidApp(aName().replace(' ', '-')), contact_id: contactId }, other);
  const { status, body } = await server.request<{ id: string }>(
    'POST',
    '/v1/push/send',
    { ...notification, contact_id: contactId },
    withKey(other.key),
  );
  expect(status).toBe(202);
  return body.id;
};

makeForeign['/chatapp/:id'] = async () => {
  const { id: template_id } = await addChatTemplate(server, {
    organizationId: other.organizationId,
    content: written('Hello'),
  });
  const body = { to: '+4915112345678', template_id };
  const sent = await server.request<{ id: string }>('POST', '/v1/chatapp/send', body, withKey(other.key));
  expect(sent.status).toBe(202);
  return sent.body.id;
};

/** For routes that need the resource in another state than the one in which it is made. */
const makeForeignFor: Record<string, () => Promise<string>> = {};

const tomorrow = () => new Date(Date.now() + 86_400_000).toISOString();

/** As they are made above, but at a time of their own. */
for (const path of ['/email', '/sms', '/push', '/chatapp']) {
  for (const route of [`POST ${path}/:id/cancel`, `PATCH ${path}/:id`]) {
    makeForeignFor[route] = async () => {
      const id = await makeForeign[`${path}/:id`]!();
      const { database } = server.installation;
      await database.rows({
        text: `update messages set status = 'scheduled', scheduled_at = now() + interval '1 hour' where id = '${id}'`,
      });
      await database.rows({
        text: `update delivery_queue
          set is_cancellable = true, due_at = now() + interval '1 hour', accepted_at = now() + interval '1 hour'
          where message_id = '${id}'`,
      });
      return id;
    };
  }
}

makeForeign['/logs/:id'] = async () => {
  const refused = await server.request('POST', '/v1/lists', {}, withKey(other.key));
  expect(refused.status).toBe(422);
  return refused.headers.get('x-request-id')!;
};

makeForeign['/push/contacts/:contact_id'] = () => makeForeign['/contacts/:id']!();

const campaignContents = {
  '/email/campaigns': { from: `a@${otherDomain}`, subject: 'Hello', text: 'Hello' },
  '/sms/campaigns': { from: otherSender, body: 'Hello' },
  '/push/campaigns': notification,
  // Of a template that is made for it.
  '/chatapp/campaigns': {},
};

for (const path of ['/email/campaigns', '/sms/campaigns', '/push/campaigns', '/chatapp/campaigns'] as const) {
  makeForeign[`${path}/:id`] = () => makeCampaign(path);
  makeForeignFor[`POST ${path}/:id/cancel`] = () =>
    makeCampaign(path, "status = 'scheduled', scheduled_at = now()");
  makeForeignFor[`POST ${path}/:id/resume`] = () =>
    makeCampaign(path, "status = 'paused', pause_reason = 'schedule_missed', scheduled_at = now()");
}

/** Ready to be sent. */
async function makeCampaign(
  path: keyof typeof campaignContents,
  state = "status = 'draft'",
): Promise<string> {
  const list = await makeForeign['/lists/:id']!();
  const { organizationId } = other;
  const template =
    path === '/chatapp/campaigns' &&
    (await addChatTemplate(server, { organizationId, content: written('Hello') }));
  const content = template === false ? campaignContents[path] : { template_id: template.id };
  const created = await server.request<{ id: string }>(
    'POST',
    `/v1${path}`,
    { name: aName(), ...content, list_ids: [list] },
    withKey(other.key),
  );
  expect(created.status).toBe(201);
  await server.installation.database.rows({ text: `update campaigns set ${state} where id = $1` }, [
    created.body.id,
  ]);
  return created.body.id;
}

/** For each route that needs a body, one that it would take; the contact is of the organization whose the resource is. A new route needs an entry. */
const validBodies: Readonly<Record<string, (contactId: string) => object>> = {
  'POST /email/send': () => ({ ...letter, from: 'a@postillion.test' }),
  'POST /email/send/batch': () => ({ emails: [{ ...letter, from: 'a@postillion.test' }] }),
  'POST /email/:id/resend': () => ({}),
  ...Object.fromEntries(
    ['email', 'sms', 'push', 'chatapp'].map((channel) => [
      `PATCH /${channel}/:id`,
      () => ({ scheduled_at: tomorrow() }),
    ]),
  ),
  'POST /sms/send': () => ({ ...text, from: 'Mine' }),
  'POST /sms/send/batch': () => ({ messages: [{ ...text, from: 'Mine' }] }),
  'POST /templates': () => ({ name: aName(), text: 'Hello' }),
  'POST /chatapp/templates': aChatTemplate,
  'PATCH /chatapp/templates/:id': () => ({}),
  'PATCH /templates/:id': () => ({}),
  'POST /templates/:id/render': () => ({}),
  'POST /email/domains': () => ({ name: `mine-${randomUUID()}.example` }),
  'POST /contacts': () => ({ external_id: aName() }),
  'PUT /contacts': () => ({ external_id: aName() }),
  'POST /contacts/bulk': () => ({ contacts: [{ external_id: aName() }] }),
  'POST /contacts/search': () => ({ conditions: hasEmail }),
  'PATCH /contacts/:id': () => ({}),
  'POST /contacts/bulk-delete': () => ({ contact_ids: [unknownId] }),
  'POST /email/campaigns': () => ({ name: aName() }),
  'PATCH /email/campaigns/:id': () => ({}),
  'POST /email/campaigns/:id/send': () => ({}),
  'POST /email/campaigns/:id/preview': () => ({}),
  'POST /email/campaigns/:id/test': () => ({ to: ['ann@example.com'] }),
  'POST /sms/campaigns': () => ({ name: aName() }),
  'PATCH /sms/campaigns/:id': () => ({}),
  'POST /sms/campaigns/:id/send': () => ({}),
  'POST /sms/campaigns/:id/preview': () => ({}),
  'POST /sms/campaigns/:id/test': () => ({ to: ['+14155550123'] }),
  'POST /push/campaigns': () => ({ name: aName() }),
  'PATCH /push/campaigns/:id': () => ({}),
  'POST /push/campaigns/:id/send': () => ({}),
  'POST /push/campaigns/:id/preview': () => ({}),
  'POST /push/campaigns/:id/test': (contactId) => ({ to: [contactId] }),
  'POST /chatapp/campaigns': () => ({ name: aName() }),
  'PATCH /chatapp/campaigns/:id': () => ({}),
  'POST /chatapp/campaigns/:id/send': () => ({}),
  'POST /chatapp/campaigns/:id/preview': () => ({}),
  'POST /chatapp/campaigns/:id/test': () => ({ to: ['+14155550123'] }),
  'POST /lists': () => ({ name: aName() }),
  'PATCH /lists/:id': () => ({}),
  'POST /lists/:id/contacts': () => ({ contact_ids: [unknownId] }),
  'DELETE /lists/:id/contacts': () => ({ contact_ids: [unknownId] }),
  'POST /webhooks': () => ({ kind: 'poll', events: ['sms.failed'] }),
  'PATCH /webhooks/:id': () => ({}),
  'POST /webhooks/:id/replay': () => ({ from: 1 }),
  'POST /webhooks/:id/rotate-secret': () => ({}),
  'POST /webhooks/:id/enable': () => ({}),
  'POST /webhooks/:id/test': () => ({}),
  'POST /tags': () => ({ name: aName() }),
  'PATCH /tags/:id': () => ({}),
  'POST /tags/:id/contacts': () => ({ contact_ids: [unknownId] }),
  'DELETE /tags/:id/contacts': () => ({ contact_ids: [unknownId] }),
  'POST /properties': () => ({ key: aName().replace(' ', '_'), name: 'Mine', type: 'string' }),
  'POST /events': () => ({ name: aName().replace(' ', '_') }),
  'PATCH /events/:id': () => ({ description: 'Mine' }),
  'POST /events/send': () => ({ event: 'known' }),
  'POST /events/send/batch': () => ({ events: [{ event: 'known' }] }),
  'PATCH /properties/:id': () => ({}),
  'POST /segments': () => ({ name: aName(), conditions: hasEmail }),
  'PATCH /segments/:id': () => ({}),
  'POST /chatapp/send': () => ({ to: '+4915112345678', template: 'known', language: 'en_US' }),
  'POST /push/send': () => notification,
  'POST /push/send/batch': () => ({ messages: [notification] }),
  'POST /chatapp/send/batch': () => ({
    messages: [{ to: '+4915112345678', template: 'known', language: 'en_US' }],
  }),
  'POST /push/devices': () => androidApp(aName()),
  'POST /push/devices/bulk': () => ({ devices: [androidApp(aName())] }),
  'POST /push/devices/unregister': () => ({ installation_id: aName(), reason: 'logout' }),
  'POST /segments/preview': () => ({ conditions: hasEmail }),
};

function bodyOf(route: Route, contactId = unknownId): object | undefined {
  if (route.body === null || route.body === emptyBody) return undefined;
  const make = validBodies[routeKey(route)];
  if (make === undefined) throw new Error(`no body is given here for ${routeKey(route)}`);
  return make(contactId);
}

/** The kind of thing that a path names: `/email/:id` for `/email/:id/anything`. */
function kindOf(path: string): string {
  return path.slice(0, path.indexOf(':')) + /:\w+/.exec(path)![0];
}

test('there are routes, and each is named once', () => {
  expect(routes.length).toBeGreaterThan(0);
  const names = routes.map(({ method, path }) => `${method} ${path}`);
  expect(new Set(names).size).toBe(names.length);
});

test('every route asks for a scope that a key can have, but for those of devices', () => {
  expect(routes.filter(({ scope }) => !(scopes as readonly string[]).includes(scope)).map(routeKey)).toEqual([
    'POST /push/engagements',
  ]);
});

test('without a key, or with a wrong one, every route answers 401 and says nothing else', async () => {
  for (const [index, route] of routes.entries()) {
    // More at once would be refused as too many wrong keys.
    const wrong = index % 2 === 0 ? 'Bearer' : `Bearer pst_${'x'.repeat(43)}`;
    for (const authorization of ['', wrong]) {
      const { status, body } = await server.request(route.method, pathOf(route), undefined, {
        authorization,
      });
      expect([route.path, status, body]).toMatchObject([route.path, 401, { name: 'unauthorized' }]);
    }
  }
});

test('every route opens to its own scope, and to every other one it answers 403 and names what is missing', async () => {
  for (const route of routes) {
    for (const [scope, key] of keyOfScope) {
      const { status, body } = await server.request(route.method, pathOf(route), undefined, withKey(key));
      const what = `${route.method} ${route.path} with ${scope}`;
      if (route.scope === scopeOfDevices) {
        expect([status, body], what).toMatchObject([401, { name: 'unauthorized' }]);
      } else if (scope === route.scope) {
        expect([200, 400, 404], what).toContain(status);
      } else {
        expect(body, what).toEqual({
          status_code: 403,
          name: 'forbidden',
          message: `The API key lacks the scope ${route.scope}.`,
        });
      }
    }
  }
});

test("to every route another organization's id is an unknown id", async () => {
  for (const route of routes.filter((each) => each.path.includes(':') && !isEverybodys(each))) {
    const make = makeForeignFor[routeKey(route)] ?? makeForeign[kindOf(route.path)];
    if (make === undefined) throw new Error(`no resource is made here for ${route.path}`);
    const foreignId = await make();
    const contactId = await makeForeign['/contacts/:id']!();
    const ask = (id: string, key: string) =>
      server.request(route.method, pathOf(route, id, contactId), bodyOf(route, contactId), withKey(key));
    const [foreign, unknown, malformed, own] = [
      await ask(foreignId, server.key),
      await ask(unknownId, server.key),
      await ask('nonsense', server.key),
      await ask(foreignId, other.key),
    ];
    expect([route.path, unknown.status]).toEqual([route.path, 404]);
    expect([foreign.status, foreign.text]).toEqual([unknown.status, unknown.text]);
    expect([malformed.status, malformed.text]).toEqual([unknown.status, unknown.text]);
    expect(headersOf(foreign.headers)).toEqual(headersOf(unknown.headers));
    expect(own.status, 'to its owner').toBeLessThan(300);
  }
});

/** All but what differs from request to request. */
function headersOf(headers: Headers): string[][] {
  return [...headers].filter(
    ([name]) => !/^(date|x-request-id|ratelimit-remaining|ratelimit-reset)$/.test(name),
  );
}

/** What the ids in fields other than `id` refer to. */
const namedByField: Readonly<Record<string, string>> = {
  contact_id: '/contacts/:id',
  contact_ids: '/contacts/:id',
  list_id: '/lists/:id',
  list_ids: '/lists/:id',
  tag_id: '/tags/:id',
  tag_ids: '/tags/:id',
  segment_id: '/segments/:id',
  segment_ids: '/segments/:id',
  exclude_list_ids: '/lists/:id',
  exclude_tag_ids: '/tags/:id',
  exclude_segment_ids: '/segments/:id',
  template_id: '/templates/:id',
  request_id: '/logs/:id',
};

/** Ids that clients choose themselves, and those in the log of requests, which is of what was asked. */
const namesOfOthers = [
  'external_id',
  'content_id',
  'installation_id',
  'android_channel_id',
  'resource_id',
  'key_id',
];

function isIdField(field: string): boolean {
  return /_ids?$/.test(field) && !namesOfOthers.includes(field);
}

function listFields(schema: Route['body']): string[] {
  return schema !== null && 'properties' in schema ? Object.keys(schema.properties as object) : [];
}

test("in every body and every query another organization's id is an unknown id", async () => {
  const fields = routes.flatMap((route) =>
    (['body', 'query'] as const).flatMap((place) =>
      listFields(route[place])
        .filter(isIdField)
        .map((field) => ({ route, place, field })),
    ),
  );
  expect(fields.length).toBeGreaterThan(8);
  for (const { route, place, field } of fields) {
    const make = makeForeign[namedByField[field] ?? ''];
    if (make === undefined) throw new Error(`nobody says here what ${field} names`);
    const foreignId = await make();
    // A path that names something names something of one's own.
    const own = route.path.includes(':') ? await makeOwn(kindOf(route.path)) : unknownId;
    const base = bodyOf(route);
    const ask = (id: string) => {
      const value = field.endsWith('s') ? [id] : id;
      return place === 'query'
        ? server.request(route.method, `${pathOf(route, own)}?${field}=${id}`, base)
        : server.request(route.method, pathOf(route, own), { ...base, [field]: value });
    };
    const [foreign, unknown] = [await ask(foreignId), await ask(unknownId)];
    const what = `${routeKey(route)} ${field}`;
    expect([what, foreign.status, foreign.text.replaceAll(foreignId, unknownId)]).toEqual([
      what,
      unknown.status,
      unknown.text,
    ]);
    const path = `/v1${namedByField[field]!.replace(':id', foreignId)}`;
    const still = await server.request('GET', path, undefined, withKey(other.key));
    expect([what, still.status], 'it is still there for its owner').toEqual([what, 200]);
  }
});

async function makeOwn(kind: string): Promise<string> {
  const path = kind.replace('/:id', '');
  const create = validBodies[`POST ${path}`];
  const created = await server.request<{ id: string }>('POST', `/v1${path}`, create?.(unknownId));
  expect([path, created.status]).toEqual([path, 201]);
  return created.body.id;
}

test("conditions that speak of another organization's list, tag or segment are refused like unknown ones", async () => {
  for (const type of ['list', 'tag', 'segment']) {
    const foreignId = await makeForeign[`/${type}s/:id`]!();
    const preview = (id: string) =>
      server.request('POST', '/v1/segments/preview', {
        conditions: { type, operator: 'not_in', ids: [id] },
      });
    const [foreign, unknown] = [await preview(foreignId), await preview(unknownId)];
    expect([type, unknown.status]).toEqual([type, 422]);
    expect([foreign.status, foreign.text]).toEqual([unknown.status, unknown.text]);
  }
});

test("a segment is not explained for another organization's contact", async () => {
  const id = await makeOwn('/segments/:id');
  const explain = (contactId: string) => server.request('GET', `/v1/segments/${id}/contacts/${contactId}`);
  const [foreign, unknown] = [await explain(await makeForeign['/contacts/:id']!()), await explain(unknownId)];
  expect(unknown.status).toBe(404);
  expect([foreign.status, foreign.text]).toEqual([unknown.status, unknown.text]);
});

describe('a list', () => {
  test('never shows what belongs to another organization, whatever cursor is given', async () => {
    const lists = routes.filter(
      (route) =>
        route.method === 'GET' &&
        !route.path.includes(':') &&
        // The log of events goes by positions, and has a test of its own (webhook-events.test.ts).
        Object.hasOwn(route.query?.properties ?? {}, 'after') &&
        !isEverybodys(route),
    );
    expect(lists.length).toBeGreaterThan(0);
    for (const route of lists) {
      const make = makeForeign[`${route.path}/:id`];
      if (make === undefined) throw new Error(`nothing to be listed is made here for ${route.path}`);
      const foreign = [await make(), await make(), await make()];
      for (const query of ['', `?after=${foreign[2]}`, `?before=${foreign[0]}`]) {
        const mine = await server.request('GET', `${pathOf(route)}${query}`);
        expect([route.path, mine.status]).toEqual([route.path, 200]);
        for (const id of foreign) expect(mine.text).not.toContain(id);
        const theirs = await server.request('GET', `${pathOf(route)}${query}`, undefined, withKey(other.key));
        expect(theirs.text, `${route.path}${query}`).toContain(foreign[1]);
      }
    }
  });
});

test("a sender on another organization's domain is refused like one on an unknown domain", async () => {
  const send = (domain: string) =>
    server.request('POST', '/v1/email/send', { ...letter, from: `a@${domain}` });
  const [foreign, unknown] = [await send(otherDomain), await send('nobody.example')];
  expect(unknown.status).toBe(400);
  expect(foreign.status).toBe(400);
  expect(foreign.text.replace(otherDomain, 'nobody.example')).toBe(unknown.text);
});

test("another organization's sender of texts is refused like an unknown one", async () => {
  const send = (from: string) => server.request('POST', '/v1/sms/send', { ...text, from });
  const [foreign, unknown] = [await send(otherSender), await send('Nobody')];
  expect([foreign.status, unknown.status]).toEqual([400, 400]);
  expect(foreign.text.replace(otherSender, 'Nobody')).toBe(unknown.text);
});

test("an idempotency key is not taken by another organization's use of it", async () => {
  const headers = { 'idempotency-key': 'the same for both' };
  const mine = await server.request(
    'POST',
    '/v1/email/send',
    { ...letter, from: 'a@postillion.test' },
    headers,
  );
  const theirs = await server.request(
    'POST',
    '/v1/email/send',
    { ...letter, from: `a@${otherDomain}` },
    { ...headers, ...withKey(other.key) },
  );
  expect([mine.status, theirs.status]).toEqual([202, 202]);
  expect(theirs.headers.get('idempotent-replayed')).toBeNull();
  expect(theirs.text).not.toBe(mine.text);
});
