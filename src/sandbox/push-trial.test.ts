import { createECDH, randomBytes } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../../test/support/email-journey.ts';
import { setUpPush } from '../../test/support/push-journey.ts';
import { startTestServer, type TestServer } from '../../test/support/server.ts';
import { sandboxToken } from './sandbox.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ worker: true });
  await setUpPush(server);
});

afterAll(() => server.stop());

const device = (name: string, more: object = {}) => ({
  platform: 'web',
  installation_id: name,
  endpoint: `https://fcm.googleapis.com/fcm/send/${name}`,
  p256dh_key: createECDH('prime256v1').generateKeys('base64url'),
  auth_key: randomBytes(16).toString('base64url'),
  enablement_status: 'AUTHORIZED',
  sdk_version: 'web/1',
  ...more,
});

const content = { title: 'It works', body: 'Click me', deep_link: 'http://127.0.0.1/sandbox/push' };

type Registered = { id: string; status: string; contact_id: string; device_secret?: string };
type State = {
  devices: { id: string; installation_id: string; status: string }[];
  push: {
    status: string;
    devices: { device_id: string; status: string; clicked_at: string | null }[];
  } | null;
};

/** As a page, which has no key. */
function ask<Body = unknown>(
  method: string,
  path: string,
  body?: unknown,
  headers: Record<string, string> = {},
) {
  return server.request<Body>(method, `/sandbox/push${path}`, body, { authorization: 'none', ...headers });
}

async function untilSent(id: string): Promise<State> {
  const { body } = await eventually(
    () => ask<State>('GET', `/state?push=${id}`),
    ({ body: { push } }) => push?.status !== 'queued',
  );
  return body;
}

test('the page tells what a browser subscribes with, and that pushes stay here', async () => {
  const page = await ask<string>('GET', '');
  expect(page.status).toBe(200);
  expect(page.headers.get('content-security-policy')).toContain("script-src 'self'");
  expect(page.text).not.toMatch(/<script(?! src)|<style|onclick/);
  expect((await ask('GET', '/page.js')).headers.get('content-type')).toBe('text/javascript; charset=utf-8');
  expect((await ask('GET', '/setup')).body).toEqual({
    provider: 'sandbox',
    is_sandbox: true,
    organization: { id: server.organizationId, name: expect.any(String) },
    public_key: expect.stringMatching(/^[\w-]{87}$/),
  });
});

test('a browser is registered as through the API, sent a push, and what it reports is shown', async () => {
  const registered = await ask<Registered>('POST', '/devices', device('one'));
  expect(registered).toMatchObject({ status: 200, body: { status: 'ACTIVE' } });
  const { contact_id: contactId, id: deviceId, device_secret: secret } = registered.body;
  const contact = await server.request('GET', `/v1/contacts/${contactId}`);
  expect(contact.body).toMatchObject({ external_id: 'postillion-sandbox' });

  const sent = await ask<{ id: string }>('POST', '/messages', content);
  expect(sent.status).toBe(200);
  const { id } = sent.body;
  expect(await untilSent(id)).toMatchObject({
    devices: [{ id: deviceId, installation_id: 'one', status: 'ACTIVE' }],
    push: { status: 'sent', devices: [{ device_id: deviceId, status: 'sent', clicked_at: null }] },
  });
  const reported = await server.request(
    'POST',
    '/v1/push/engagements',
    {
      installation_id: 'one',
      events: [
        {
          event_id: server.installation.newId(),
          message_id: id,
          type: 'clicked',
          action_id: 'wave',
          occurred_at: new Date(server.installation.clock.nowMs()).toISOString(),
        },
      ],
    },
    { authorization: `Bearer ${secret}` },
  );
  expect([reported.status, reported.text]).toEqual([202, expect.anything()]);
  expect((await ask<State>('GET', `/state?push=${id}`)).body.push?.devices).toMatchObject([
    { status: 'clicked', action_id: 'wave', clicked_at: expect.any(String) },
  ]);
  expect((await server.request('GET', `/v1/push/${id}`)).body).toMatchObject({
    ...content,
    ttl_seconds: 3_600,
  });
});

test('two browsers belong to one contact, and the page decides no contact', async () => {
  const other = await server.request<{ id: string }>('POST', '/v1/contacts', { external_id: 'customer' });
  const registered = await Promise.all(
    ['two', 'three'].map((name) =>
      ask<Registered>(
        'POST',
        '/devices',
        device(name, { contact_id: other.body.id, external_id: 'customer' }),
      ),
    ),
  );
  expect(registered.map(({ status }) => status)).toEqual([200, 200]);
  const contactIds = new Set(registered.map(({ body }) => body.contact_id));
  expect(contactIds.size).toBe(1);
  expect(contactIds).not.toContain(other.body.id);
});

test('a device of another contact stays that contact’s', async () => {
  const owner = await server.request<{ id: string }>('POST', '/v1/contacts', { external_id: 'owner' });
  const phone = { installation_id: 'their phone', platform: 'android', device_token: 'theirs' };
  const theirs = [phone, device('their browser')];
  for (const one of theirs)
    expect(
      await server.request('POST', '/v1/push/devices', { ...one, contact_id: owner.body.id }),
    ).toMatchObject({ status: 200 });
  for (const { installation_id: name } of theirs)
    expect(await ask('POST', '/devices', device(name))).toMatchObject({
      status: 409,
      body: { message: 'This installation belongs to another contact.' },
    });
  expect(await ask('POST', '/devices', phone)).toMatchObject({
    status: 422,
    body: { message: 'platform must be web' },
  });
  const { body } = await server.request<{ data: { installation_id: string; status: string }[] }>(
    'GET',
    `/v1/push/contacts/${owner.body.id}/devices`,
  );
  expect(body.data.map(({ installation_id: name, status }) => [name, status])).toEqual([
    ['their browser', 'ACTIVE'],
    ['their phone', 'ACTIVE'],
  ]);
});

test('what the API refuses is refused with its words', async () => {
  expect(await ask('POST', '/devices', device('bad', { auth_key: 'short' }))).toMatchObject({
    status: 422,
    body: { name: 'validation_error', message: expect.stringContaining('auth_key') },
  });
  expect(
    await ask('POST', '/devices', device('bad', { endpoint: 'https://169.254.169.254/' })),
  ).toMatchObject({
    status: 422,
    body: { message: expect.stringContaining('endpoint') },
  });
  expect(await ask('POST', '/devices', device('bad', { platform: 'smoke' }))).toMatchObject({ status: 422 });
  for (const name of ['', 'a\u0000b', '\ud800', 'x'.repeat(300)])
    expect(await ask('POST', '/devices', device(name))).toMatchObject({ status: 422 });
  for (const name of [7, null, {}, undefined])
    expect(await ask('POST', '/devices', device('bad', { installation_id: name }))).toMatchObject({
      status: 422,
    });
  expect(await ask('POST', '/messages', { ...content, title: '' })).toMatchObject({ status: 422 });
  expect(await ask('POST', '/messages', { ...content, title: 'a\u0000b' })).toMatchObject({ status: 422 });
  expect(await ask('POST', '/messages', { ...content, title: 7 })).toMatchObject({ status: 422 });
  for (const body of ['', 'null', '7', '{', 'title=It+works'])
    expect(await ask('POST', '/messages', body)).toMatchObject({ status: 400 });
});

test('a push of another contact is none of this page', async () => {
  const customer = await server.request<{ id: string }>('POST', '/v1/contacts', {
    external_id: 'customer 2',
  });
  const sent = await server.request<{ id: string }>('POST', '/v1/push/send', {
    contact_id: customer.body.id,
    title: 'Private',
    body: 'Private',
  });
  expect(sent.status).toBe(202);
  for (const id of [sent.body.id, server.installation.newId(), 'x', '../contacts'])
    expect(await ask('GET', `/state?push=${encodeURIComponent(id)}`)).toMatchObject({ status: 404 });
});

const foreign = [
  ['another site', { 'sec-fetch-site': 'cross-site', origin: 'https://evil.example' }],
  ['another port of this machine', { 'sec-fetch-site': 'same-site', origin: 'http://127.0.0.1:9' }],
  ['an old browser on another site', { origin: 'https://evil.example' }],
  ['a frame without an origin', { origin: 'null' }],
] as const;

test.each(foreign)('a page of %s can neither register nor send', async (_, headers) => {
  const before = (await ask<State>('GET', '/state')).body.devices.length;
  for (const [path, body] of [
    ['/devices', device('foreign')],
    ['/messages', content],
  ] as const)
    expect(await ask('POST', path, body, headers)).toMatchObject({ status: 403 });
  expect((await ask<State>('GET', '/state')).body.devices).toHaveLength(before);
});

test('what a browser sends for another site without asking is not taken', async () => {
  for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=a'])
    expect(await ask('POST', '/messages', JSON.stringify(content), { 'content-type': type })).toMatchObject({
      status: 400,
    });
});

test('who may not open the sandbox finds nothing here, and the link opens this page too', async () => {
  const guarded = await startTestServer({ sandboxAccess: 'token' });
  try {
    const open = (method: string, path: string, body?: unknown) =>
      guarded.request(method, `/sandbox/push${path}`, body, { authorization: 'none' });
    expect(await open('GET', '')).toMatchObject({ status: 404 });
    expect(await open('GET', '/setup')).toMatchObject({ status: 404 });
    expect(await open('GET', '/state')).toMatchObject({ status: 404 });
    expect(await open('POST', '/devices', device('one'))).toMatchObject({ status: 404 });
    expect(await open('POST', '/messages', content)).toMatchObject({ status: 404 });
    const opened = await open('GET', `?token=${sandboxToken(guarded.installation.secrets)}`);
    expect(opened.headers.get('set-cookie')).toMatch(/^postillion_sandbox=.*HttpOnly; SameSite=Strict/);
  } finally {
    await guarded.stop();
  }
});

test('without a VAPID pair the page says so, and takes nothing', async () => {
  const bare = await startTestServer();
  try {
    const open = (method: string, path: string, body?: unknown) =>
      bare.request(method, `/sandbox/push${path}`, body, { authorization: 'none' });
    expect((await open('GET', '/setup')).body).toMatchObject({ organization: null, public_key: null });
    expect(await open('POST', '/devices', device('one'))).toMatchObject({
      status: 400,
      body: { message: expect.stringContaining('VAPID') },
    });
  } finally {
    await bare.stop();
  }
});
