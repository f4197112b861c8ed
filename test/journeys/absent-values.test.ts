import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Installation } from '../../src/installation/opening.ts';
import { isCursor, paginationParameters } from '../../src/platform/http/pagination.ts';
import { type Route, routeKey, scopeOfDevices } from '../../src/platform/http/route.ts';
import { createValidation } from '../../src/platform/http/validation.ts';
import { listRoutes } from '../../src/roles/api.ts';
import { fieldRules } from '../../src/roles/field-rules.ts';
import { textFormats } from '../../src/roles/text-formats.ts';
import { aPushContact, androidApp, register, setUpPush } from '../support/push-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { updateOrganization } from '../../src/accounts/accounts.ts';

/** What is not there, in each of the ways in which clients say so: null, an empty filter, a record given back. */

type Fields = Record<string, unknown>;
type Shape = {
  properties?: Record<string, Shape>;
  required?: string[];
  type?: string | string[];
  anyOf?: Shape[];
  nullIsRefused?: boolean;
};

const routes = listRoutes({} as Installation).map((route) => ({ key: routeKey(route), route }));
const withBody = routes.filter(({ route }) => route.body !== null);
const examples = JSON.parse(
  readFileSync(new URL('../../docs/api-examples.json', import.meta.url), 'utf8'),
) as Record<string, { body?: Fields; status: number; answer: Fields }[]>;
const bodiesOf = ({ operationId }: Route) =>
  (examples[operationId] ?? []).flatMap(({ body, status }) =>
    body === undefined || status >= 300 ? [] : [body],
  );

const facts = {
  at: new Date('2026-11-26T12:00:00Z'),
  settings: { 'push-hosts': ['fcm.googleapis.com'], 'own-hosts': [] },
};
const validation = createValidation(textFormats, fieldRules);

/** As a route gets it. */
function read(route: Route, body: Fields): { issues: string[]; value: Fields } {
  const value = structuredClone(body);
  const isChange = route.method === 'PATCH';
  return { issues: validation.compile(route.body!, { isChange })(value, facts), value };
}

const propertiesOf = (route: Route) => Object.entries((route.body as Shape).properties ?? {});
const isRequired = (route: Route, name: string) => ((route.body as Shape).required ?? []).includes(name);

const takesNull = ({ type, anyOf }: Shape): boolean =>
  anyOf?.some(takesNull) ?? (type === undefined || [type].flat().includes('null'));

/** Each optional field of the body of a route. */
const optional = withBody.flatMap(({ key, route }) =>
  propertiesOf(route)
    .filter(([name]) => !isRequired(route, name))
    .map(([name, field]) => ({ key, route, name, field })),
);
const creating = optional.filter(({ route }) => route.method !== 'PATCH');
const changing = optional.filter(({ route }) => route.method === 'PATCH');

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
  // It asks for more than a minute's share.
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 10_000 });
  await setUpPush(server);
});

afterAll(async () => {
  await server.stop();
});

test('there are optional fields in many bodies', () => {
  expect([creating.length > 80, changing.length > 50]).toEqual([true, true]);
});

test.each(creating.filter(({ field }) => field.nullIsRefused !== true))(
  '$key: null for $name is as good as nothing',
  ({ route, name, field }) => {
    const bodies = bodiesOf(route);
    for (const body of bodies.length === 0 ? [{}] : bodies) {
      const { [name]: _left, ...others } = body;
      const [without, withNull] = [read(route, others), read(route, { ...others, [name]: null })];
      expect(withNull.issues).toEqual(without.issues);
      // Where the schema takes null, the route has a meaning for it: that there is none.
      if (!takesNull(field)) expect(withNull.value).toEqual(without.value);
    }
  },
);

test.each(creating.filter(({ field }) => field.nullIsRefused === true))(
  '$key: null for $name is refused, since to leave it out is something else',
  async ({ route, name }) => {
    expect(name).toBe('scheduled_at');
    const path = route.path.replace(':id', '0198c0de-0000-7000-8000-000000000001');
    const { status, body } = await server.request<{ message: string }>('POST', `/v1${path}`, {
      scheduled_at: null,
    });
    expect([status, body.message]).toEqual([422, expect.stringMatching(/^scheduled_at must be a string/)]);
  },
);

test('the fields that refuse null are the times of campaigns', () => {
  expect(optional.filter(({ field }) => field.nullIsRefused === true).map(({ key }) => key)).toEqual(
    ['email', 'sms', 'push', 'chatapp'].map((channel) => `POST /${channel}/campaigns/:id/send`),
  );
});

test.each(changing)(
  '$key: null for $name clears it or is refused, and is never overlooked',
  ({ route, name }) => {
    const { issues, value } = read(route, { [name]: null });
    if (issues.length === 0) expect(value).toEqual({ [name]: null });
    else expect(issues.join()).toContain(name);
  },
);

test('null is nothing within lists and objects too', () => {
  const route = routes.find(({ key }) => key === 'POST /push/send')!.route;
  const button = { action_id: 'open', label: 'Open' };
  const body = { contact_id: '0198c0de-0000-7000-8000-000000000001', title: 'Hello', body: 'World' };
  const { issues, value } = read(route, { ...body, action_buttons: [{ ...button, deep_link: null }] });
  expect([issues, value]).toEqual([[], { ...read(route, body).value, action_buttons: [button] }]);
});

describe('a record', () => {
  const created = withBody.filter(
    ({ route }) => route.method === 'POST' && route.success.statusCode === 201 && !route.path.includes(':'),
  );

  test.each(created)('that $key has answered makes another one', ({ route }) => {
    const answers = (examples[route.operationId] ?? []).filter(({ status }) => status === 201);
    expect(answers.length).toBeGreaterThan(0);
    for (const { answer } of answers) {
      const own = propertiesOf(route).filter(([name]) => Object.hasOwn(answer, name));
      const { issues } = read(route, Object.fromEntries(own.map(([name]) => [name, answer[name]])));
      // What is given back need not be all that a creation wants, but nothing of it is wrong.
      expect(issues.filter((issue) => !issue.includes(' is required'))).toEqual([]);
    }
  });

  // But for an address that was erased, which nobody can give back.
  test.each(created)('of $key has no null where a creation wants a value', ({ route }) => {
    const record = (route.success.schema as Shape).properties ?? {};
    const nullable = Object.keys(record).filter((name) => takesNull(record[name]!));
    const isErasable = (name: string) => route.path === '/suppressions' && name === 'address';
    expect(nullable.filter((name) => isRequired(route, name) && !isErasable(name))).toEqual([]);
  });
});

const unknownId = '0198c0de-0000-7000-8000-000000000001';
const pathOf = ({ path }: Route) => `/v1${path.replace(/:\w+/g, unknownId)}`;

describe('a query', () => {
  const filters = routes.flatMap(({ key, route }) =>
    Object.keys(route.query?.properties ?? {})
      .filter((name) => !isCursor(name))
      .map((name) => ({ key, route, name })),
  );

  test('has filters on many routes', () => {
    expect(filters.length).toBeGreaterThan(30);
  });

  test.each(filters)('of $key with nothing for $name is one without it', async ({ route, name }) => {
    const [without, empty] = [
      await server.request(route.method, pathOf(route)),
      await server.request(route.method, `${pathOf(route)}?${name}=`),
    ];
    expect([empty.status, empty.body]).toEqual([without.status, without.body]);
    expect([200, 404]).toContain(empty.status);
  });

  test.each(routes.filter(({ route }) => route.query !== null))(
    'of $key with an empty place in the list is refused',
    async ({ route }) => {
      const cursors = Object.keys(route.query?.properties ?? {}).filter(isCursor);
      for (const name of [...cursors, ...Object.keys(paginationParameters)]) {
        const { status } = await server.request(route.method, `${pathOf(route)}?${name}=`);
        expect([name, status]).toEqual([name, 422]);
      }
    },
  );

  test.each(routes.filter(({ route }) => route.scope !== scopeOfDevices))(
    'of $key with an unknown parameter is refused, be it empty',
    async ({ route }) => {
      for (const query of ['shoe_size=43', 'shoe_size=']) {
        const body = route.body === null ? undefined : {};
        const answer = await server.request<{ message: string }>(
          route.method,
          `${pathOf(route)}?${query}`,
          body,
        );
        expect([answer.status, answer.body.message]).toEqual([
          422,
          expect.stringMatching(/^shoe_size is not a known/),
        ]);
      }
    },
  );
});

describe('a device', () => {
  const browser = {
    platform: 'web',
    enablement_status: 'AUTHORIZED',
    endpoint: 'https://fcm.googleapis.com/fcm/send/x',
    p256dh_key: 'BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4',
    auth_key: 'BTBZMqHH6r4Tts7J_aSIgg',
  };
  const { device_token: _token, ...android } = androidApp('phone');
  const unreachable: [string, Fields][] = [
    ['device_token is required for android', android],
    ['device_token is required for android', { ...android, device_token: null }],
    ['endpoint is required for web', { ...browser, installation_id: 'tab', endpoint: null }],
    ['p256dh_key is required for web', { ...browser, installation_id: 'tab', p256dh_key: null }],
    ['auth_key is required for web', { ...browser, installation_id: 'tab', auth_key: undefined }],
  ];

  test.each(unreachable)('of which nothing says where it is: 400, %s', async (says, device) => {
    const contact_id = await aPushContact(server);
    const single = await server.request<{ name: string; message: string }>('POST', '/v1/push/devices', {
      contact_id,
      ...device,
    });
    const expected = { status_code: 400, name: 'bad_request', message: `${says}.` };
    expect([single.status, single.body]).toEqual([400, expect.objectContaining(expected)]);
    const right = { contact_id, ...androidApp(`right-${contact_id}`) };
    const bulk = await server.request<{ data: { index: number; error?: Fields }[] }>(
      'POST',
      '/v1/push/devices/bulk',
      { devices: [{ contact_id, ...device }, right] },
    );
    expect(bulk.body.data).toEqual([
      expect.objectContaining({ index: 0, error: expect.objectContaining(expected) as unknown }),
      expect.objectContaining({ index: 1, status: 'ACTIVE' }),
    ]);
  });

  test('with null for all that is optional is one without it', async () => {
    const contact_id = await aPushContact(server);
    const nulls = Object.fromEntries(
      ['email', 'external_id', 'phone_number', 'endpoint', 'p256dh_key', 'auth_key', 'apns_environment']
        .concat(['sdk_version', 'app_version', 'os_version', 'device_model', 'device_timezone'])
        .map((name) => [name, null]),
    );
    const device = await register(server, { contact_id, ...androidApp('nulls'), ...nulls });
    expect(device).toMatchObject({ status: 'ACTIVE', contact_id });
  });
});
