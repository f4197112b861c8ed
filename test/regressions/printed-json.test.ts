/**
 * What is stored small is not read large. A payload of 27 kB became 1.4 MB whenever `jsonb` wrote out its numbers, and a
 * page of them held everybody up. Everything here is made from the table of routes and from that of the database's
 * columns: each route that takes JSON, each place in it where a client decides what it holds, each route that reads, and
 * each column that keeps JSON.
 */
import type { TSchema } from 'typebox';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { insertEvents } from '../../src/events/store.ts';
import { type Route, scopeOfDevices } from '../../src/platform/http/route.ts';
import type { Installation } from '../../src/installation/opening.ts';
import { listRoutes } from '../../src/roles/api.ts';
import { addChatTemplate, written } from '../support/chat-app-journey.ts';
import { type ErrorBody, rowsOf } from '../support/email-journey.ts';
import { defineEvent, sendEvent } from '../support/event-journey.ts';
import { androidApp, register, setUpPush } from '../support/push-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender } from '../support/sms-journey.ts';
import { updateOrganization } from '../../src/accounts/accounts.ts';

const routes = listRoutes({} as Installation);
const keyOf = ({ method, path }: Route) => `${method} ${path}`;
const writingRoutes = routes.filter(({ body }) => body !== null);
const id = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';
const withIds = (path: string, ids: Readonly<Record<string, string>> = {}) =>
  path.replaceAll(/:(\w+)/g, (_whole, name: string) => ids[name] ?? id);

let server: TestServer;
let deviceSecret: string;

beforeAll(async () => {
  server = await startTestServer();
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 100_000 });
  await addApprovedSender(server, 'Acme');
  await setUpPush(server);
  const contact = await server.request<{ id: string }>('POST', '/v1/contacts', { external_id: 'somebody' });
  const device = { ...androidApp('of-somebody'), contact_id: contact.body.id };
  deviceSecret = (await register(server, device)).device_secret ?? '';
});
afterAll(() => server.stop());

const storable = '0, or in size at least 1e-20 and below 1e+30';

describe('a number that is written with hundreds of digits', () => {
  test.each(writingRoutes.map((route) => [keyOf(route), route]))('is refused by %s', async (_key, route) => {
    const { body } = await server.request<ErrorBody>(
      route.method,
      `/v1${withIds(route.path)}`,
      '{"some":[{"thing":1e308},1e30,-1E-21,1e400],"fine":[1e29,-1e-20,0e9]}',
      route.scope === scopeOfDevices ? { authorization: `Bearer ${deviceSecret}` } : {},
    );
    expect(body).toMatchObject({ status_code: 422, name: 'validation_error' });
    for (const place of ['some[0].thing', 'some[1]', 'some[2]', 'some[3]'])
      expect(body.message).toContain(`${place} must be ${storable}`);
    expect(body.message).not.toContain(`fine[`);
  });

  test('is in no row, whatever wrote it', async () => {
    const columns = await rowsOf<{ name: string; is_guarded: boolean }>(
      server,
      `select c.relname || '.' || a.attname as name,
         exists (
           select
           from pg_constraint guard
           where guard.conrelid = c.oid and guard.contype = 'c' and guard.convalidated
             and pg_get_constraintdef(guard.oid) = format('CHECK ((NOT has_long_number(%I)))', a.attname)
         ) as is_guarded
       from pg_class c
       join pg_attribute a on a.attrelid = c.oid and not a.attisdropped
       where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
         and a.atttypid = 'jsonb'::regtype`,
    );
    // These hold counts and headers, of which no number comes from a client.
    const ours = ['recipient_counts.fates', 'idempotency_keys.headers', 'storage_usage.bytes_by_kind'];
    const unguarded = columns.filter(({ is_guarded: isGuarded }) => !isGuarded).map(({ name }) => name);
    expect(unguarded.filter((name) => !ours.includes(name))).toEqual([]);
    expect(columns.length).toBeGreaterThan(unguarded.length);
    const { name } = await defineEvent(server);
    const eventId = await sendEvent(server, { event: name, external_id: 'guarded', payload: { fine: 1e29 } });
    const [event] = await rowsOf<{ contact_id: string; definition_number: number }>(
      server,
      'select contact_id, definition_number from events where id = $1',
      [eventId],
    );
    await expect(
      insertEvents(server.installation.database, [
        {
          organizationId: server.organizationId,
          contactId: event?.contact_id ?? '',
          id,
          definitionNumber: event?.definition_number ?? 0,
          occurredAt: new Date(),
          payload: '{"deep":[{"down":1e308}]}',
        },
      ]),
    ).rejects.toThrow('events_numbers');
  });
});

/** A place in a body where a client decides what it holds: the names of its fields, or all of it. */
type Place = { at: string; holds: 'scalars' | 'texts' | 'anything' };

function freePlaces(schema: TSchema, at: string): Place[] {
  const { type, properties, patternProperties, additionalProperties, items, anyOf } = schema as {
    type?: string | string[];
    properties?: Record<string, TSchema>;
    patternProperties?: Record<string, { type?: string | string[] }>;
    additionalProperties?: unknown;
    items?: TSchema;
    anyOf?: TSchema[];
    enum?: unknown;
    const?: unknown;
  };
  if (anyOf !== undefined) return anyOf.flatMap((option) => freePlaces(option, at));
  const types = [type ?? []].flat();
  if (types.length === 0 && !('enum' in schema) && !('const' in schema)) return [{ at, holds: 'anything' }];
  const [named] = Object.values(patternProperties ?? {});
  if (named !== undefined) {
    const isText = [named.type].flat().every((one) => one === 'string');
    return [{ at, holds: isText ? 'texts' : 'scalars' }];
  }
  if (types.includes('array') && items !== undefined) return freePlaces(items, `${at}[]`);
  if (!types.includes('object')) return [];
  if (additionalProperties !== false) return [{ at, holds: 'anything' }];
  return Object.entries(properties ?? {}).flatMap(([name, field]) =>
    freePlaces(field, at === '' ? name : `${at}.${name}`),
  );
}

const places = writingRoutes.flatMap((route) =>
  freePlaces(route.body ?? {}, '').map((place) => ({ ...place, key: `${keyOf(route)} ${place.at}` })),
);

/** The longest numbers that may be, and what JSON writes with six characters. */
const nasty = [-1.2345678901234567e-20, 1e29, '\u0001'.repeat(200)];

/** So many fields of one kind. */
function fields<Value>(names: readonly string[], value: (index: number) => Value): Record<string, Value> {
  return Object.fromEntries(names.map((name, index) => [name, value(index)]));
}

const namesOf = (count: number) => Array.from({ length: count }, (_none, index) => `field_${index}`);

function nested(depth: number): unknown {
  return depth === 0 ? nasty : [nested(depth - 1)];
}

const nastyValues = (count: number) => fields(namesOf(count), (index) => nasty[index % nasty.length]);
const nastyPayload = {
  list: Array.from({ length: 900 }, () => 1e29),
  deep: nested(26),
  ...nastyValues(20),
};

/** Made before everything else, for what is written to refer to. */
const world = {
  contactId: '',
  otherContactId: '',
  segmentId: '',
  templateId: '',
  chatTemplateId: '',
  webhookId: '',
  event: '',
  eventId: '',
};
let made = 0;

const next = () => `${(made += 1)}`;
const email = () => ({
  from: 'news@postillion.test',
  from_name: 'News',
  to: ['you@example.com'],
  subject: 'Hello',
  text: 'Hello',
});
const conditions = () => ({
  type: 'group',
  match: 'any',
  conditions: Array.from({ length: 100 }, (_none, index) =>
    index % 2 === 0
      ? { type: 'property', key: 'number_0', operator: 'between', value: [-1e29, 1.2345678901234567e-20] }
      : { type: 'property', key: 'text_0', operator: 'in', value: ['\u0001'.repeat(40)] },
  ),
});
const properties = () => ({
  ...fields(propertyNames('number'), (index) => nasty[index % 2]),
  ...fields(propertyNames('text'), () => '\u0001'.repeat(200)),
});
const propertyNames = (kind: string) => Array.from({ length: 20 }, (_none, index) => `${kind}_${index}`);
const placeholders = Array.from({ length: 40 }, (_none, index) => `v${index}`);
const chatTemplate = () => ({
  name: `nasty_${next()}`,
  language: 'en_US',
  category: 'utility',
  components: [
    { type: 'body', text: `Hello ${placeholders.map((name) => `{{${name}}}`).join(' and ')} there` },
  ],
  examples: fields(placeholders, () => 'x'.repeat(200)),
});

const webhookHeaders = fields(
  namesOf(5).map((name) => `x-${name}`),
  () => 'x'.repeat(1_000),
);

const metadata = fields(namesOf(20), () => '\u0001'.repeat(500));

type Request = { method: string; path: string; body: object };

/** What is sent to each place: the nastiest that is stored. */
const requests: Readonly<Record<string, () => Request>> = {
  'POST /email/send variables': () => post('/email/send', { ...email(), variables: nastyValues(300) }),
  'POST /email/send metadata': () => post('/email/send', { ...email(), metadata }),
  'POST /sms/send metadata': () =>
    post('/sms/send', { from: 'Acme', to: '+447700900123', body: 'Hello', metadata }),
  'POST /push/send metadata': () =>
    post('/push/send', { contact_id: world.contactId, title: 'Hello', body: 'Hello', metadata }),
  'POST /chatapp/send metadata': () =>
    post('/chatapp/send', {
      to: '+447700900123',
      template_id: world.chatTemplateId,
      parameters: { name: 'x' },
      metadata,
    }),
  'POST /email/send headers': () =>
    post('/email/send', {
      ...email(),
      headers: fields(
        Array.from({ length: 25 }, (_none, index) => `X-Long-${index}`),
        () => 'x'.repeat(900),
      ),
    }),
  'POST /email/send/batch emails[]': () =>
    post('/email/send/batch', {
      emails: Array.from({ length: 5 }, () => ({ ...email(), variables: nastyValues(300) })),
    }),
  'POST /sms/send/batch messages[]': () =>
    post('/sms/send/batch', {
      messages: Array.from({ length: 5 }, () => ({
        from: 'Acme',
        to: '+447700900123',
        body: 'Hello',
        variables: nastyValues(300),
      })),
    }),
  'POST /push/send/batch messages[]': () =>
    post('/push/send/batch', {
      messages: Array.from({ length: 5 }, () => ({
        contact_id: world.contactId,
        title: 'Hello',
        body: 'Hello',
        data_payload: { first: '\u0001'.repeat(200), second: '\u0001'.repeat(200) },
      })),
    }),
  'POST /chatapp/send/batch messages[]': () =>
    post('/chatapp/send/batch', {
      messages: Array.from({ length: 5 }, () => ({
        to: '+447700900123',
        template_id: world.chatTemplateId,
        parameters: { name: 'x'.repeat(900) },
      })),
    }),
  'POST /sms/send variables': () =>
    post('/sms/send', { from: 'Acme', to: '+447700900123', body: 'Hello', variables: nastyValues(300) }),
  'POST /push/send data_payload': () =>
    post('/push/send', {
      contact_id: world.contactId,
      title: 'Hello',
      body: 'Hello',
      data_payload: { first: '\u0001'.repeat(200), second: '\u0001'.repeat(200) },
    }),
  'POST /chatapp/send parameters': () =>
    post('/chatapp/send', {
      to: '+447700900123',
      template_id: world.chatTemplateId,
      parameters: { name: 'x'.repeat(900) },
    }),
  'POST /contacts properties': () =>
    post('/contacts', { external_id: `nasty ${next()}`, properties: properties() }),
  'PUT /contacts properties': () =>
    put('/contacts', { external_id: `nasty ${next()}`, properties: properties() }),
  'POST /contacts/bulk contacts[]': () =>
    post('/contacts/bulk', {
      contacts: Array.from({ length: 10 }, () => ({
        external_id: `nasty ${next()}`,
        properties: properties(),
      })),
    }),
  'POST /contacts/search conditions': () => post('/contacts/search', { conditions: conditions() }),
  'PATCH /contacts/:id properties': () => patch(`/contacts/${world.contactId}`, { properties: properties() }),
  'POST /segments conditions': () => post('/segments', { name: `Nasty ${next()}`, conditions: conditions() }),
  'POST /segments/preview conditions': () => post('/segments/preview', { conditions: conditions() }),
  'PATCH /segments/:id conditions': () => patch(`/segments/${world.segmentId}`, { conditions: conditions() }),
  'POST /templates/:id/render variables': () =>
    post(`/templates/${world.templateId}/render`, { variables: nastyValues(300) }),
  'POST /chatapp/templates examples': () => post('/chatapp/templates', chatTemplate()),
  'PATCH /chatapp/templates/:id examples': () => {
    const { components, examples } = chatTemplate();
    return patch(`/chatapp/templates/${world.chatTemplateId}`, { components, examples });
  },
  'POST /suppressions/bulk suppressions[]': () =>
    post('/suppressions/bulk', {
      suppressions: Array.from({ length: 20 }, () => ({
        channel: 'email',
        address: `nasty-${next()}@example.com`,
        note: 'x'.repeat(255),
      })),
    }),
  'POST /webhooks headers': () =>
    post('/webhooks', {
      kind: 'url',
      url: 'https://example.com/',
      events: ['sms.failed'],
      headers: webhookHeaders,
    }),
  'PATCH /webhooks/:id headers': () => patch(`/webhooks/${world.webhookId}`, { headers: webhookHeaders }),
  'POST /events/send payload': () =>
    post('/events/send', { event: world.event, contact_id: world.contactId, payload: nastyPayload }),
  'POST /events/send/batch events[]': () =>
    post('/events/send/batch', {
      events: Array.from({ length: 10 }, () => ({
        event: world.event,
        contact_id: world.contactId,
        payload: nastyPayload,
      })),
    }),
  'POST /push/devices/bulk devices[]': () =>
    post('/push/devices/bulk', {
      devices: [
        {
          ...androidApp(`nasty-${next()}`),
          contact_id: world.contactId,
          device_model: '\u0001'.repeat(40),
        },
      ],
    }),
  ...campaignRequests('email', { variables: nastyValues(300) }),
  ...campaignRequests('sms', { variables: nastyValues(300) }),
  ...campaignRequests('push', {
    variables: nastyValues(300),
    data_payload: { first: '\u0001'.repeat(100) },
  }),
  ...campaignRequests('chatapp', {
    variables: nastyValues(300),
    parameters: fields(placeholders, () => 'x'.repeat(900)),
  }),
};

/** Of a draft that is made and then changed. */
function campaignRequests(
  channel: string,
  content: Readonly<Record<string, object>>,
): Record<string, () => Request> {
  const path = `/${channel}/campaigns`;
  return Object.fromEntries(
    Object.entries(content).flatMap(([name, value]) => [
      [`POST ${path} ${name}`, () => post(path, { name: `Nasty ${next()}`, [name]: value })],
      [`PATCH ${path}/:id ${name}`, () => patch(`${path}/${campaigns.get(path) ?? ''}`, { [name]: value })],
    ]),
  );
}

/** The one that is changed, by the path of its collection. */
const campaigns = new Map<string, string>();

const post = (path: string, body: object): Request => ({ method: 'POST', path, body });
const put = (path: string, body: object): Request => ({ method: 'PUT', path, body });
const patch = (path: string, body: object): Request => ({ method: 'PATCH', path, body });

test('each place that a client decides on is filled here', () => {
  expect(places.map(({ key }) => key).sort()).toEqual(Object.keys(requests).sort());
});

/** The same request so often: enough for a page to weigh what many rows weigh. */
const rowsEach = 6;

describe('what was sent to all of them', () => {
  /** Bytes of bodies, by the room: the first part of the path. */
  const sentBytes = new Map<string, number>();
  const send = async ({ method, path, body }: Request) => {
    const response = await server.request<{ id: string }>(method, `/v1${path}`, body);
    expect([response.status, response.text]).toEqual([expect.toSatisfy(isSuccess), expect.anything()]);
    const room = roomOf(path);
    const bytes = Buffer.byteLength(JSON.stringify(body));
    sentBytes.set(room, (sentBytes.get(room) ?? 0) + bytes);
    return response;
  };

  const totalBytes = () => [...sentBytes.values()].reduce((sum, bytes) => sum + bytes, 0);

  beforeAll(async () => {
    for (const name of propertyNames('number'))
      await send(post('/properties', { key: name, name, type: 'number' }));
    for (const name of propertyNames('text'))
      await send(post('/properties', { key: name, name, type: 'string' }));
    const idOf = async (path: string, body: object) => (await send(post(path, body))).body.id;
    world.contactId = await idOf('/contacts', { external_id: 'nasty', properties: properties() });
    await register(server, { ...androidApp('of-nasty'), contact_id: world.contactId });
    world.segmentId = await idOf('/segments', { name: 'Nasty', conditions: conditions() });
    world.templateId = await idOf('/templates', { name: 'Nasty', subject: 'Hello', text: 'Hello' });
    world.chatTemplateId = (await addChatTemplate(server, { content: written('Hello {{name}} there') })).id;
    world.webhookId = await idOf('/webhooks', {
      kind: 'url',
      url: 'https://example.com/',
      events: ['sms.failed'],
    });
    const definition = await defineEvent(server);
    [world.event, world.eventId] = [definition.name, definition.id];
    for (const path of ['/email/campaigns', '/sms/campaigns', '/push/campaigns', '/chatapp/campaigns'])
      campaigns.set(path, await idOf(path, { name: 'Nasty' }));
    for (const toRequest of Object.values(requests)) {
      for (let row = 0; row < rowsEach; row += 1) {
        const { text } = await send(toRequest());
        // A preview shows contacts that were sent before.
        expect(Buffer.byteLength(text)).toBeLessThan(2 * totalBytes() + 8_192);
      }
    }
  });

  const readingRoutes = routes.filter(({ method }) => method === 'GET');

  test.each(readingRoutes.map((route) => [route.path, route]))(
    'is no larger when %s shows it',
    async (path) => {
      const room = roomOf(path);
      const [collection = ''] = /^\/(?:\w+\/campaigns|chatapp\/templates|[^/]+)/.exec(path) ?? [];
      const ids: Record<string, string> = {
        id: (await firstOf(collection)) ?? id,
        contact_id: world.contactId,
      };
      if (room === 'contacts') ids.id = world.contactId;
      if (room === 'events') ids.id = world.eventId;
      const isList = !/(?:id|categories|content|alerts)$/.test(path);
      const { status, text } = await server.request(
        'GET',
        `/v1${withIds(path, ids)}${isList ? '?limit=100' : ''}`,
      );
      expect([path, status]).toEqual([path, isEmpty(path) ? 404 : 200]);
      const shown = (sentBytes.get(room) ?? 0) + (room === 'contacts' ? (sentBytes.get('events') ?? 0) : 0);
      const records = text.split('"created_at"').length + text.split('"id"').length;
      // What is ours: names of fields, ids, times and counts of each record.
      expect(Buffer.byteLength(text)).toBeLessThan(2 * shown + 2_048 * records);
    },
  );

  test('is not larger either where the database writes it for the service', async () => {
    const columns = await rowsOf<{ table_name: string; column_name: string }>(
      server,
      `select c.relname as table_name, a.attname as column_name
       from pg_class c
       join pg_attribute a on a.attrelid = c.oid and not a.attisdropped
       where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
         and c.relrowsecurity and a.atttypid in ('json'::regtype, 'jsonb'::regtype)`,
    );
    const sent = totalBytes();
    let written = 0;
    for (const { table_name: table, column_name: column } of columns) {
      const [row] = await rowsOf<{ bytes: number }>(
        server,
        `select coalesce(sum(octet_length(${column}::text)), 0)::integer as bytes
         from ${table} where organization_id = $1`,
        [server.organizationId],
      );
      written += row?.bytes ?? 0;
    }
    expect(written).toBeGreaterThan(sent / 4);
    // A number of five characters may take thirty here.
    expect(written).toBeLessThan(4 * sent);
  });

  async function firstOf(collection: string): Promise<string | undefined> {
    const { body } = await server.request<{ data?: { id: string }[] }>('GET', `/v1${collection}?limit=1`);
    return body.data?.[0]?.id;
  }
});

/** Nothing of it is asked for here: no client decides on what it holds. */
const isEmpty = (path: string) =>
  ['/lists/:id', '/tags/:id', '/templates/gallery/:id', '/email/domains/:id'].includes(path) ||
  path === '/webhooks/:id/deliveries/:event_id';

const isSuccess = (status: unknown) => status === 200 || status === 201 || status === 202;

/** What is sent below it is shown below it. */
function roomOf(path: string): string {
  return path.split('/')[1] ?? '';
}

describe('a page of large events', () => {
  test('ends before it holds everybody up, and the next one goes on there', async () => {
    const { name } = await defineEvent(server);
    const { body: contact } = await server.request<{ id: string }>('POST', '/v1/contacts', {
      external_id: 'talkative',
    });
    const payload = { list: Array.from({ length: 16_000 }, () => 0) };
    // As PostgreSQL prints it, with a space after each comma and colon.
    const printedBytes = JSON.stringify(payload).length + 16_000;
    const sent: string[] = [];
    for (let count = 0; count < 25; count += 1)
      sent.push(await sendEvent(server, { event: name, contact_id: contact.id, payload }));
    type Occurrences = { has_more: boolean; data: { id: string; payload: object }[] };
    const pageOf = async (query: string) => {
      const { body, text } = await server.request<Occurrences>(
        'GET',
        `/v1/contacts/${contact.id}/events?limit=20${query}`,
      );
      expect(Buffer.byteLength(text)).toBeLessThan(524_288 + 2 * 48_100);
      // With the event that reaches so many bytes, and not before it.
      if (body.has_more) expect(body.data).toHaveLength(Math.ceil(524_288 / printedBytes));
      return body;
    };
    for (const [direction, wanted] of [
      ['after', [...sent].reverse()],
      ['before', sent],
    ] as const) {
      const seen: string[] = [];
      let query = direction === 'after' ? '' : `&before=00000000-0000-7000-8000-000000000000`;
      for (let hasMore = true; hasMore && seen.length < 100;) {
        const page = await pageOf(query);
        const ids = page.data.map((event) => event.id);
        if (direction === 'before') ids.reverse();
        expect(page.data[0]?.payload).toEqual(payload);
        seen.push(...ids);
        hasMore = page.has_more;
        query = `&${direction}=${ids.at(-1) ?? ''}`;
      }
      expect(seen).toEqual(wanted);
    }
  });
});
