import { readFileSync } from 'node:fs';
import type { TSchema } from 'typebox';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { largeBodyBytesMin } from '../../src/platform/http/body-threads.ts';
import { type Route, routeKey, scopeOfDevices } from '../../src/platform/http/route.ts';
import { createValidation } from '../../src/platform/http/validation.ts';
import type { Installation } from '../../src/installation/opening.ts';
import { listRoutes } from '../../src/roles/api.ts';
import { fieldRules } from '../../src/roles/field-rules.ts';
import { textFormats } from '../../src/roles/text-formats.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

/**
 * One answer lists all that is wrong with a body: what its schema says, and what the rules say that the schema names.
 * Every rule of every route is broken here together with its schema, in a body that is read on the main thread and in one
 * that is read in a thread of its own.
 */

type Fields = Record<string, unknown>;

const webKeys = {
  p256dh_key: 'BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4',
  auth_key: 'BTBZMqHH6r4Tts7J_aSIgg',
};
const button = { type: 'quick_reply', text: 'Yes', url: 'https://example.com/' };
const componentsWith = (button_: Fields) => ({
  category: 'marketing',
  authentication: undefined,
  components: [
    { type: 'body', text: 'Hello' },
    { type: 'buttons', buttons: [button_] },
  ],
});

/** How to break each rule: fields that replace those of a body that is right, and what is said of them. */
const breaches: Record<keyof typeof fieldRules, { fields: Fields; issue: RegExp }> = {
  'email-fields': { fields: { headers: { Bcc: 'a@example.com' } }, issue: /headers\.Bcc / },
  'email-source': {
    fields: { template_id: undefined, html: undefined, text: undefined },
    issue: /one of html, text or template_id is required/,
  },
  'email-campaign': {
    fields: { template_id: '0198c0de-0000-7000-8000-000000000001', html: '<p>Hello</p>' },
    issue: /template_id must not be combined with html or text/,
  },
  'push-content': { fields: { data_payload: { aps: 'x' } }, issue: /data_payload\.aps is a reserved key/ },
  'push-campaign': { fields: { data_payload: { aps: 'x' } }, issue: /data_payload\.aps is a reserved key/ },
  'push-event': {
    fields: {
      events: [
        {
          event_id: 'a',
          message_id: '0198c0de-0000-7000-8000-000000000001',
          type: 'displayed',
          action_id: 'x',
          occurred_at: '2026-11-21T10:00:00Z',
        },
      ],
    },
    issue: /events\[0\]\.action_id belongs to clicked, and not to displayed/,
  },
  'sms-length': {
    fields: { body: 'x'.repeat(1_601), variables: undefined },
    issue: /body must have 1 to 1600 characters/,
  },
  'chatapp-template': {
    fields: { template_id: undefined, template: undefined, language: 'en_US' },
    issue: /template_id must be given alone/,
  },
  'chat-template': {
    fields: { category: 'marketing', components: undefined, authentication: undefined },
    issue: /components is required where category is marketing/,
  },
  'chat-template-component': {
    fields: {
      category: 'marketing',
      authentication: undefined,
      components: [{ type: 'body', text: 'Hello', format: 'text' }],
    },
    issue: /components\[0\]\.format must be left out where type is body/,
  },
  'chat-template-button': {
    fields: componentsWith(button),
    issue: /components\[1\]\.buttons\[0\]\.url must be left out where type is quick_reply/,
  },
  'contact-identifiers': {
    fields: { external_id: undefined, email: null, phone_number: undefined },
    issue: /one of external_id, email and phone_number is required/,
  },
  suppression: { fields: { channel: 'sms', address: 'nobody' }, issue: /address must be / },
  'suppression-check': {
    fields: { channel: 'sms', addresses: ['nobody'] },
    issue: /addresses\[0\] must be /,
  },
  'webhook-endpoint': {
    fields: { headers: { Host: 'example.com' } },
    issue: /headers\.Host is a header that we set ourselves/,
  },
  'property-key': { fields: { key: 'email' }, issue: /key must not be the name of a field of contacts/ },
  'event-payload': {
    fields: { payload: { text: 'x'.repeat(32_768) } },
    issue: /payload must be at most 32768/,
  },
  'event-time': {
    fields: { occurred_at: '2020-01-01T00:00:00Z' },
    issue: /occurred_at must be at most 30 days ago/,
  },
  'event-fields': {
    fields: {
      schema: {
        fields: [
          { name: 'total', type: 'number' },
          { name: 'total', type: 'string' },
        ],
      },
    },
    issue: /schema\.fields\[1\]\.name total is there twice/,
  },
  'device-fields': {
    fields: {
      platform: 'web',
      device_token: undefined,
      apns_environment: undefined,
      ...webKeys,
      endpoint: 'https://push.example.com/x',
    },
    issue: /endpoint must be of a push service that this installation allows/,
  },
  'device-address': {
    fields: {
      platform: 'web',
      device_token: undefined,
      apns_environment: undefined,
      p256dh_key: undefined,
      auth_key: webKeys.auth_key,
      endpoint: undefined,
    },
    issue: /endpoint is required for web, p256dh_key is required for web/,
  },
  'domain-name': {
    fields: { name: 'a.bounces.example.net' },
    issue: /name must not be a host of this installation/,
  },
  'domain-subdomains': {
    fields: { name: 'new.example.com', return_path_subdomain: 'same', tracking_subdomain: 'same' },
    issue: /tracking_subdomain must not be the same as return_path_subdomain/,
  },
  'template-content': { fields: { html: null, text: undefined }, issue: /one of html and text is required/ },
  'segment-conditions': {
    fields: { conditions: { type: 'field', field: 'shoe_size', operator: 'eq', value: '1' } },
    issue: /conditions\.field must be one of /,
  },
};

/** The rules of a schema and of all that it holds. */
function rulesIn(schema: unknown): string[] {
  if (typeof schema !== 'object' || schema === null) return [];
  return Object.entries(schema).flatMap(([keyword, value]) =>
    keyword === 'rules' && Array.isArray(value) ? (value as string[]) : rulesIn(value),
  );
}

const routes = listRoutes({} as Installation);
const described = routes.flatMap((route) =>
  route.body === null ? [] : [...new Set(rulesIn(route.body))].map((rule) => ({ route, rule })),
);

const examples = JSON.parse(
  readFileSync(new URL('../../docs/api-examples.json', import.meta.url), 'utf8'),
) as Record<string, { body?: Fields }[]>;

/** A body that is right, with other fields in place of its own. */
function bodyWith({ operationId }: Route, fields: Fields): Fields {
  return { ...examples[operationId]?.find(({ body }) => body !== undefined)?.body, ...fields };
}

const facts = {
  at: new Date('2026-11-26T12:00:00Z'),
  settings: { 'push-hosts': ['fcm.googleapis.com'], 'own-hosts': ['bounces.example.net'] },
};
const validation = createValidation(textFormats, fieldRules);
const issuesOf = (schema: TSchema, body: unknown) => validation.compile(schema)(structuredClone(body), facts);

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ bounceHost: 'bounces.example.net' });
});

afterAll(async () => {
  await server.stop();
});

test('every rule is one that a route has, and every route with a rule is tried', () => {
  expect(new Set(described.map(({ rule }) => rule))).toEqual(new Set(Object.keys(fieldRules)));
  expect(described.length).toBeGreaterThan(20);
});

const unknownField = { shoe_size_of_the_sender: 43 };
const unknownIssue = 'shoe_size_of_the_sender is not a known field';

test.each(described)('$route.operationId names a fault of its schema and one of $rule', ({ route, rule }) => {
  const { fields, issue } = breaches[rule]!;
  const issues = issuesOf(route.body!, bodyWith(route, { ...fields, ...unknownField }));
  expect(issues).toContain(unknownIssue);
  expect(issues.join(', ')).toMatch(issue);
  const named = issues.map((text) => text.slice(0, text.indexOf(' ')));
  expect(new Set(named).size).toBe(named.length);
});

test.each(described)('$route.operationId finds the fault of $rule alone', async ({ route, rule }) => {
  const { fields, issue } = breaches[rule]!;
  const body = bodyWith(route, fields);
  const issues = issuesOf(route.body!, body);
  // What is left to the route is refused there.
  if (fieldRules[rule]!.isLeftToRoute === true) expect(issues).toEqual([]);
  else expect(issues.join(', ')).toMatch(issue);
  if (route.scope === scopeOfDevices || route.path.includes(':')) return;
  const answer = await server.request<{ message: string }>(route.method, `/v1${route.path}`, body);
  expect([answer.status, answer.body.message]).toEqual([
    rule === 'device-address' ? 400 : 422,
    expect.stringMatching(issue),
  ]);
});

const overHttp = described.filter(({ route }) => route.scope !== scopeOfDevices);

test.each(overHttp)(
  '$route.operationId says the same of a large body as of a small one ($rule)',
  async ({ route, rule }) => {
    const { fields, issue } = breaches[rule]!;
    const text = JSON.stringify(bodyWith(route, { ...fields, ...unknownField }));
    const path = route.path.replace(/:\w+/g, '0198c0de-0000-7000-8000-000000000001');
    const send = async (body: string) => {
      const response = await fetch(`${server.url}/v1${path}`, {
        method: route.method,
        headers: { authorization: `Bearer ${server.key}`, 'content-type': 'application/json' },
        body,
      });
      return { status: response.status, ...((await response.json()) as { message: string }) };
    };
    const small = await send(text);
    expect(small).toMatchObject({ status: 422, name: 'validation_error' });
    expect(small.message).toContain(unknownIssue);
    expect(small.message).toMatch(issue);
    expect(await send(text + ' '.repeat(largeBodyBytesMin))).toEqual(small);
  },
);

test.each(routes.filter(({ body }) => body !== null).map((route) => ({ key: routeKey(route), route })))(
  '$key has words for every keyword of its schema, none of which says only that a value is wrong',
  ({ route }) => {
    for (const wrong of [null, 7, 'text', [], {}, { [Object.keys(bodyWith(route, {}))[0] ?? 'x']: [[]] }]) {
      for (const issue of issuesOf(route.body!, wrong)) {
        expect(issue).not.toMatch(/is not valid|keep to|one of the allowed types/);
      }
    }
  },
);
