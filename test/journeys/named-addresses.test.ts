/** `Name <address>` is the address wherever one is taken that is kept without a name. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { authorize } from '../support/email-journey.ts';
import { defineEvent } from '../support/event-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: { organizationId: string; key: string };

const named = 'Ann "The Boss" Lee <Ann.Lee@Example.com>'.replaceAll('"', '');
const bare = 'Ann.Lee@Example.com';

beforeAll(async () => {
  server = await startTestServer();
  other = await createSender(server.installation, 'elsewhere.example');
});
afterAll(() => server.stop());

type Contact = { id: string; email: string; first_name: string | null };

const ask = async <Body>(method: string, path: string, body?: unknown, sender?: { key: string }) => {
  const response = await server.request<Body>(method, `/v1${path}`, body, authorize(sender));
  expect([path, response.status, response.text]).toEqual([path, expect.toSatisfy(isSuccess), response.text]);
  return response.body;
};
const isSuccess = (status: unknown) => typeof status === 'number' && status < 300;

test('one person is one contact, however the address is written, in every request that names it', async () => {
  const theirs = await ask<Contact>('POST', '/contacts', { email: named, first_name: 'Theirs' }, other);
  const { id } = await ask<Contact>('POST', '/contacts', { email: named });
  expect(id).not.toBe(theirs.id);
  const contact = () => ask<Contact>('GET', `/contacts/${id}`);
  // A name beside it is no field of the contact.
  expect(await contact()).toMatchObject({ email: bare, first_name: null });
  const again = await server.request<{ message: string }>('POST', '/v1/contacts', {
    email: `Other <${bare}>`,
  });
  expect([again.status, again.body.message]).toEqual([409, expect.stringContaining(id)]);

  expect(await ask('PUT', '/contacts', { email: named, first_name: 'Ann' })).toMatchObject({ id });
  expect(
    await ask('POST', '/contacts/bulk', { contacts: [{ email: named }, { email: `<${bare}>` }] }),
  ).toMatchObject({
    data: [
      { id, created: false },
      { id, created: false },
    ],
  });
  const listed = await ask<{ data: Contact[] }>('GET', `/contacts?email=${encodeURIComponent(named)}`);
  expect(listed.data).toMatchObject([{ id, first_name: 'Ann' }]);
  await ask('PATCH', `/contacts/${id}`, { email: `"Lee, Ann" <${bare}>` });
  expect(await contact()).toMatchObject({ email: bare });

  const { name } = await defineEvent(server);
  expect(await ask('POST', '/events/send', { event: name, email: named })).toBeDefined();
  expect((await ask<{ data: Contact[] }>('GET', '/contacts?limit=100')).data).toHaveLength(1);
});

test('an address is suppressed, however it is written', async () => {
  const suppression = { channel: 'email', address: named, scope: 'all' };
  const { id } = await ask<{ id: string }>('POST', '/suppressions', suppression);
  expect(await ask('GET', `/suppressions/${id}`)).toMatchObject({ address: bare.toLowerCase() });
  const checked = await ask<{ data: { suppressions: unknown[] }[] }>('POST', '/suppressions/check', {
    channel: 'email',
    addresses: [bare, `Somebody else <${bare.toUpperCase()}>`, 'other@example.com'],
  });
  expect(checked.data.map(({ suppressions }) => suppressions.length)).toEqual([1, 1, 0]);
  const listed = await ask<{ data: unknown[] }>('GET', `/suppressions?search=${encodeURIComponent(named)}`);
  expect(listed.data).toHaveLength(1);
});

test.each([
  'Ann <ann@example.com',
  'ann@example.com>',
  'a@example.com, b@example.com',
  'Ann <a@b> <c@example.com>',
  '=?utf-8?q?Ann?= <ann@example.com>',
  'Team: a@example.com;',
])('what names nobody alone is refused: %s', async (email) => {
  for (const [method, path, body] of [
    ['POST', '/contacts', { email }],
    ['PUT', '/contacts', { email }],
    ['POST', '/suppressions', { channel: 'email', address: email, scope: 'all' }],
  ] as const) {
    const { status } = await server.request(method, `/v1${path}`, body);
    expect([path, status]).toEqual([path, 422]);
  }
});
