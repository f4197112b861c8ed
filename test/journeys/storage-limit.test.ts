/** An organization that stores as much as it may, until it has deleted something. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createApiKey, measureStorage } from '../../src/accounts/accounts.ts';
import { changePlan } from '../../src/operator/plan.ts';
import { anEmail, authorize, type ErrorBody, post, rowsOf, settled } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let rival: { organizationId: string; key: string };
beforeAll(async () => {
  server = await startTestServer({ worker: true });
  rival = await createSender(server.installation, 'rival.test');
});
afterAll(() => server.stop());

/** What a key opens is remembered for some seconds; a new one is looked up. */
async function newKey(organizationId = server.organizationId): Promise<Record<string, string>> {
  const { key } = await createApiKey(server.installation, {
    organizationId,
    name: 'New',
    scopes: ['full_access'],
    expiresAt: null,
  });
  return authorize({ key });
}

const measure = () => measureStorage(server.installation, new AbortController().signal);

const create = async (path: string, body: object, headers: Record<string, string>) => {
  const response = await server.request<{ id: string } & ErrorBody>('POST', path, body, headers);
  return { status: response.status, name: response.body.name, id: response.body.id, text: response.text };
};

const aTemplate = (name: string) => ({ name, subject: 'Large', text: `${name} ${noise}` });
/** 300 kB, which PostgreSQL makes smaller by no more than a half. */
const noise = Array.from({ length: 50_000 }, (_, index) => ((index * 7_919) % 999_983).toString(36)).join(
  ' ',
);

test('over its limit an organization adds nothing, all else goes on, and after a deletion it adds again', async () => {
  const own = await newKey();
  const ofRival = await newKey(rival.organizationId);
  const key = { 'idempotency-key': 'one' };
  const accepted = await post(server, anEmail(), { ...own, ...key });
  expect(accepted.status).toBe(202);
  const contact = await create('/v1/contacts', { email: 'ann@example.com' }, own);
  const templates = [];
  for (const name of ['First', 'Second', 'Third']) {
    templates.push((await create('/v1/templates', aTemplate(name), own)).id);
    expect((await create('/v1/templates', aTemplate(name), ofRival)).status).toBe(201);
  }
  await changePlan(server.installation, server.organizationId, { storageLimitBytes: 300_000 });
  // Nothing was measured yet.
  expect((await create('/v1/contacts', { email: 'bob@example.com' }, await newKey())).status).toBe(201);
  await measure();

  const full = await newKey();
  const refused = await create('/v1/contacts', { email: 'cay@example.com' }, full);
  expect(refused).toMatchObject({ status: 422, name: 'storage_limit_reached' });
  expect(refused.text).toMatch(
    /The organization stores \d+\.\d kB and may store 300\.0 kB\. Delete something/,
  );
  expect((await create('/v1/email/send', anEmail(), full)).name).toBe('storage_limit_reached');
  expect((await create('/v1/email/send', {}, full)).name).toBe('validation_error');
  // It was accepted before.
  expect(await post(server, anEmail(), { ...full, ...key })).toMatchObject({
    status: 202,
    text: accepted.text,
  });
  expect((await post(server, anEmail({ subject: 'Other' }), { ...full, ...key })).status).toBe(409);
  await settled(server, accepted.body.id);
  const ask = async (method: 'GET' | 'PATCH' | 'DELETE', path: string, body?: object) =>
    (await server.request(method, path, body, full)).status;
  expect(await ask('GET', '/v1/contacts')).toBe(200);
  expect(await ask('PATCH', `/v1/contacts/${contact.id}`, { consent: { email: 'unsubscribed' } })).toBe(200);
  expect(
    await rowsOf(server, 'select from contacts where organization_id = $1', [server.organizationId]),
  ).toHaveLength(2);
  expect((await create('/v1/contacts', { email: 'cay@example.com' }, ofRival)).status).toBe(201);
  expect((await create('/v1/email/send', anEmail({ from: 'hello@rival.test' }), ofRival)).status).toBe(202);

  for (const id of templates.slice(1)) expect(await ask('DELETE', `/v1/templates/${id}`)).toBe(200);
  expect((await create('/v1/contacts', { email: 'cay@example.com' }, await newKey())).status).toBe(422);
  await measure();
  expect((await create('/v1/contacts', { email: 'cay@example.com' }, await newKey())).status).toBe(201);

  const [stored] = await rowsOf<{ bytes: number }>(
    server,
    'select bytes from storage_usage where organization_id = $1',
    [server.organizationId],
  );
  const limitTo = (storageLimitBytes: number | null) =>
    changePlan(server.installation, server.organizationId, { storageLimitBytes });
  await limitTo(stored!.bytes + 1);
  expect((await create('/v1/lists', { name: 'Below' }, await newKey())).status).toBe(201);
  await limitTo(stored!.bytes);
  expect((await create('/v1/contacts', { email: 'dee@example.com' }, await newKey())).status).toBe(422);
  await limitTo(null);
  expect((await create('/v1/contacts', { email: 'dee@example.com' }, await newKey())).status).toBe(201);
});
