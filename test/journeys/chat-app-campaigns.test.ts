/** Chat-app campaigns: a template to many contacts, its parameters filled with what is known of each. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { addChatTemplate, setTemplate, written } from '../support/chat-app-journey.ts';
import { authorize, type ErrorBody, eventually, rowsOf, type Sender } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: Sender & { organizationId: string };
beforeAll(async () => {
  server = await startTestServer({ worker: true });
  other = await createSender(server.installation, 'other.example');
});
afterAll(() => server.stop());

type Stats = {
  audience: number;
  sent: number;
  delivered: number;
  failed: number;
  opened: number;
  pending: number;
};
type Campaign = { id: string; status: string; failure_reason: string | null; stats: Stats };

let made = 0;
const unique = (what: string) => `${what} ${(made += 1)}`;
const aNumber = () => `+4915166${String((made += 1)).padStart(6, '0')}`;

const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown, sender?: Sender) =>
  server.request<Body>(method, `/v1${path}`, body, authorize(sender));

async function make(path: string, body: object): Promise<string> {
  const response = await ask<{ id: string }>('POST', path, body);
  expect([path, response.status, response.text]).toMatchObject([path, 201, expect.any(String)]);
  return response.body.id;
}

const offer = () =>
  addChatTemplate(server, {
    category: 'marketing',
    content: written('Dear {{first_name}}, {{offer}} until Sunday.', [
      { type: 'header', text: 'For {{first_name}}' },
    ]),
  });

async function anOffer(more: object = {}) {
  const list = await make('/lists', { name: unique('List') });
  const { id: templateId } = await offer();
  const parameters = { first_name: '{{first_name}}', offer: 'Half the price' };
  const draft = { name: unique('Campaign'), list_ids: [list], template_id: templateId, parameters, ...more };
  return { list, templateId, id: await make('/chatapp/campaigns', draft) };
}

const aContact = (list: string, more: object = {}) =>
  make('/contacts', { phone_number: aNumber(), first_name: 'Ann', list_ids: [list], ...more });

const read = async (id: string) => (await ask<Campaign>('GET', `/chatapp/campaigns/${id}`)).body;
const send = (id: string) => ask('POST', `/chatapp/campaigns/${id}/send`, {});
const sent = (id: string) =>
  eventually(
    () => read(id),
    ({ status, stats }) =>
      status === 'sent' && stats.pending === 0 && stats.delivered + stats.failed === stats.audience,
  );

test('each contact gets the template with its own values, and statuses are counted', async () => {
  const { list, id } = await anOffer();
  await aContact(list, { first_name: 'Ann      Lee' });
  await aContact(list, { first_name: 'Ben {{offer}}' });
  await aContact(list, { phone_number: '+15005550018' });
  await aContact(list, { phone_number: '+15005550011' });
  await aContact(list, { consent: { chatapp: 'unsubscribed' } });
  await ask('POST', '/contacts', {
    email: `${unique('nobody').replace(' ', '')}@example.com`,
    list_ids: [list],
  });
  expect((await send(id)).status).toBe(200);
  const { stats } = await sent(id);
  expect(stats).toMatchObject({ audience: 4, delivered: 3, failed: 1, opened: 1 });
  const kept = await rowsOf<{ source: Buffer }>(
    server,
    `select s.source from sandbox_messages s join campaigns c on c.message_id = s.message_id where c.id = $1`,
    [id],
  );
  const bodies = kept.map(({ source }) => (JSON.parse(source.toString('utf8')) as { body: string }).body);
  expect(bodies.toSorted()).toEqual([
    'Dear Ann Lee, Half the price until Sunday.',
    'Dear Ann, Half the price until Sunday.',
    'Dear Ann, Half the price until Sunday.',
    'Dear Ben {{offer}}, Half the price until Sunday.',
  ]);
  // Those of campaigns are not in the list.
  expect((await ask<{ data: unknown[] }>('GET', '/chatapp?category=marketing')).body.data).toEqual([]);
});

test('a contact without a value gets nothing, or what stands for it', async () => {
  const { list, id } = await anOffer();
  const contact = await aContact(list, { first_name: null });
  await send(id);
  await sent(id);
  const explained = await ask<Record<string, unknown>>(
    'GET',
    `/chatapp/campaigns/${id}/recipients/${contact}`,
  );
  expect(explained.body).toMatchObject({ outcome: 'failed' });
  const other = await anOffer({ variables: { first_name: 'friend' } });
  await aContact(other.list, { first_name: null });
  await send(other.id);
  expect((await sent(other.id)).stats).toMatchObject({ delivered: 1 });
});

test.each<[string, () => Promise<object>, RegExp]>([
  ['no template', () => Promise.resolve({ template_id: null }), /template_id is required/],
  [
    'a template for codes',
    async () => ({
      template_id: (await addChatTemplate(server, { category: 'authentication' })).id,
      parameters: { code: '1' },
    }),
    /one-time codes/,
  ],
  [
    'a template that is paused',
    async () => {
      const { id } = await offer();
      await setTemplate(server.installation, id, `provider_state = 'paused'`);
      return { template_id: id };
    },
    /cannot be sent: paused/,
  ],
  [
    'a template that is pending',
    async () => {
      const { id } = await offer();
      await setTemplate(
        server.installation,
        id,
        `status = 'pending', reviewed_at = null, next_step = 'review', due_at = now() + interval '1 day'`,
      );
      return { template_id: id };
    },
    /not approved: it is pending/,
  ],
  [
    'a parameter too few',
    () => Promise.resolve({ parameters: { offer: 'x' } }),
    /parameters lacks first_name/,
  ],
  [
    'a parameter too many',
    () => Promise.resolve({ parameters: { offer: 'x', first_name: 'y', plan: 'z' } }),
    /parameters has plan/,
  ],
])('a campaign with %s is not sent, and says why', async (_what, change, message) => {
  const { id } = await anOffer();
  expect((await ask('PATCH', `/chatapp/campaigns/${id}`, await change())).status).toBe(200);
  const response = await send(id);
  expect([response.status, response.body.message]).toEqual([400, expect.stringMatching(message)]);
});

test.each([
  [
    'of another organization',
    async () => (await addChatTemplate(server, { organizationId: other.organizationId })).id,
  ],
  ['that nobody knows', () => Promise.resolve('0190b6f0-0000-7000-8000-000000000000')],
  ['that is none', () => Promise.resolve('x')],
])('a template %s is refused as unknown', async (_what, idOf) => {
  const id = await idOf();
  const response = await ask('POST', '/chatapp/campaigns', { name: unique('Campaign'), template_id: id });
  expect([response.status, response.body.message]).toEqual([
    422,
    `template_id is not a chat-app template of this organization: ${id}`,
  ]);
});

test('a template that was deleted is called so, in a draft that has it and in one that is to have it', async () => {
  const { templateId, id } = await anOffer();
  expect((await ask('DELETE', `/chatapp/templates/${templateId}`)).status).toBe(200);
  const words = `template_id is a chat-app template that was deleted: ${templateId}`;
  const sending = await send(id);
  expect([sending.status, sending.body.message]).toEqual([400, expect.stringContaining(words)]);
  const preview = await ask<Record<string, unknown>>('POST', `/chatapp/campaigns/${id}/preview`, {});
  expect(preview.body).toMatchObject({ ready: false, issues: [words] });
  const other = await ask('POST', '/chatapp/campaigns', {
    name: unique('Campaign'),
    template_id: templateId,
  });
  expect([other.status, other.body.message]).toEqual([422, words]);
});

test('a preview is not ready where nobody has a value, and says how many lack one otherwise', async () => {
  const { list, id } = await anOffer();
  const preview = async () =>
    (await ask<Record<string, unknown>>('POST', `/chatapp/campaigns/${id}/preview`, {})).body;
  await aContact(list, { first_name: null });
  await aContact(list, { first_name: null });
  expect(await preview()).toMatchObject({
    ready: false,
    issues: ['neither a contact nor variables has a value for {{first_name}}'],
    missing_variables: [{ name: 'first_name', contacts: 2 }],
  });
  await aContact(list);
  expect(await preview()).toMatchObject({
    ...{ ready: true, issues: [], missing_variables: [{ name: 'first_name', contacts: 2 }] },
  });
  await ask('PATCH', `/chatapp/campaigns/${id}`, { variables: { first_name: 'friend' } });
  expect(await preview()).toMatchObject({ ready: true, missing_variables: [] });
});

test('a preview shows what one contact gets, and a test goes to a number', async () => {
  const { list, id } = await anOffer();
  const contact_id = await aContact(list);
  const preview = await ask<Record<string, unknown>>('POST', `/chatapp/campaigns/${id}/preview`, {
    contact_id,
  });
  expect(preview.body).toMatchObject({
    ...{ header: 'For Ann', body: 'Dear Ann, Half the price until Sunday.', footer: null, buttons: [] },
    ready: true,
  });
  const to = aNumber();
  const tested = await ask<{ ids: string[] }>('POST', `/chatapp/campaigns/${id}/test`, {
    to: [to],
    contact_id,
  });
  expect([tested.status, tested.text]).toEqual([202, expect.anything()]);
  await eventually(
    () => rowsOf(server, 'select from sandbox_messages where recipient = $1', [to]),
    (kept) => kept.length === 1,
  );
});

test('a campaign that is scheduled keeps its template, and one whose template was disabled fails', async () => {
  const { list, templateId, id } = await anOffer();
  await aContact(list);
  const scheduled_at = new Date(Date.now() + 86_400_000).toISOString();
  expect((await ask('POST', `/chatapp/campaigns/${id}/send`, { scheduled_at })).status).toBe(200);
  const refused = await ask('DELETE', `/chatapp/templates/${templateId}`);
  expect([refused.status, refused.body.message]).toEqual([409, expect.anything()]);
  await ask('POST', `/chatapp/campaigns/${id}/cancel`);
  expect((await ask('DELETE', `/chatapp/templates/${templateId}`)).status).toBe(200);
});

test('a text longer than a parameter may be, and what is no text, are refused', async () => {
  for (const first_name of ['x'.repeat(4_097), 7, '\u0000', '\ud800']) {
    const response = await ask('POST', '/chatapp/campaigns', { name: 'x', parameters: { first_name } });
    expect([first_name, response.status]).toEqual([first_name, 422]);
  }
});
