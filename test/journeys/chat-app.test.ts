/** Chat-app messages, from their acceptance to what became of them, through the sandbox. */
import { createHash } from 'node:crypto';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { addSuppressions } from '../../src/audience/audience.ts';
import type { ChatAppHandOff, ChatAppOutcome, ChatAppProvider } from '../../src/channels/chatapp/provider.ts';
import { createChatAppDelivery } from '../../src/chatapp/chatapp.ts';
import { applyReports, startDelivery } from '../../src/messages/messages.ts';
import { canonicalJson } from '../../src/platform/http/json-text.ts';
import { messageChannels } from '../support/channels.ts';
import {
  addChatTemplate,
  chatAppWithStatus,
  postChatApp,
  readChatApp,
  sendChatApp,
  setTemplate,
  written,
} from '../support/chat-app-journey.ts';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  queueOf,
  rowsOf,
  type Sender,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
/** Without a worker. */
let idle: TestServer;
let other: Sender & { organizationId: string };
const clock = createShiftedClock();
const idleClock = createShiftedClock();
beforeAll(async () => {
  [server, idle] = await Promise.all([
    startTestServer({ worker: true, clock }),
    startTestServer({ clock: idleClock }),
  ]);
  other = await createSender(server.installation, 'other.example');
});
afterAll(() => Promise.all([server.stop(), idle.stop()]));
afterEach(async () => {
  // What a test has left there is not for the next one to deliver.
  await rowsOf(idle, 'truncate delivery_queue, attachment_contents, hand_offs');
});

type List = { object: string; has_more: boolean; data: { id: string }[] };

const time = expect.stringMatching(/Z$/) as string;
let numbers = 0;
const aNumber = () => `+4915188${String((numbers += 1)).padStart(6, '0')}`;

async function aContact(on: TestServer, more: object = {}): Promise<{ id: string; phone_number: string }> {
  const contact = { phone_number: aNumber(), ...more };
  const { body, status } = await on.request<{ id: string }>('POST', '/v1/contacts', contact);
  expect(status).toBe(201);
  return { id: body.id, phone_number: contact.phone_number };
}

/** Once its outcome is written. */
async function handedOff(id: string): Promise<void> {
  await eventually(
    () => queueOf(server, id),
    (jobs) => jobs.length === 0,
  );
}

test('a message goes to a number, and can be read and listed', async () => {
  const template = await addChatTemplate(server);
  const to = aNumber();
  const id = await sendChatApp(server, { to, template_id: template.id, parameters: { first_name: 'Ana' } });
  const message = await chatAppWithStatus(server, id, 'delivered');
  expect(message).toEqual({
    id,
    metadata: {},
    tags: [],
    scheduled_at: null,
    to,
    contact_id: null,
    template_id: template.id,
    template: template.name,
    language: 'en_US',
    category: 'utility',
    parameters: { first_name: 'Ana' },
    status: 'delivered',
    error: null,
    uncertain: false,
    created_at: time,
    sent_at: time,
    delivered_at: time,
    read_at: null,
    updated_at: time,
  });
  const find = async (query: string) =>
    (await server.request<List>('GET', `/v1/chatapp?${query}`)).body.data.map((found) => found.id);
  for (const query of [
    `search=${encodeURIComponent(to)}`,
    `search=${to.slice(1)}`,
    `search=+${to.slice(1)}`,
    `search=${encodeURIComponent(`${to.slice(0, 3)} ${to.slice(3)}`)}`,
    `search=${template.name}`,
    `search=${template.name}&status=delivered&category=utility`,
  ])
    expect([query, await find(query)]).toEqual([query, [id]]);
  for (const query of [`search=${to}&status=queued`, `search=${template.name}&category=authentication`])
    expect([query, await find(query)]).toEqual([query, []]);
  // As if it were one of the many addresses of emails in the same index, where no name of a template is looked for.
  await rowsOf(server, `update recipients set address_key = 'reader.1@example.com' where message_id = $1`, [
    id,
  ]);
  expect(await find('search=reader.1')).toEqual([]);
  const [kept] = await rowsOf<{ source: Buffer }>(
    server,
    'select source from sandbox_messages where message_id = $1',
    [id],
  );
  expect(JSON.parse(kept!.source.toString('utf8'))).toEqual({ body: 'Hello Ana, it is on its way.' });
});

test('a contact is reached at its number, by its id or by another identifier, and a template by its name', async () => {
  const { name, language } = await addChatTemplate(server, { content: written('It is on its way.') });
  const { id: contactId, phone_number: to } = await aContact(server, { external_id: 'chatter' });
  for (const reference of [{ contact_id: contactId }, { external_id: 'chatter' }, { phone_number: to }]) {
    const id = await sendChatApp(server, { ...reference, template: name, language });
    expect(await readChatApp(server, id)).toMatchObject({
      to,
      contact_id: contactId,
      template: name,
      parameters: {},
    });
  }
});

test('what the number chooses in the sandbox becomes of the message', async () => {
  const { id: templateId } = await addChatTemplate(server, { content: written('It is on its way.') });
  const send = (to: string) => sendChatApp(server, { to, template_id: templateId });
  const refused = await chatAppWithStatus(server, await send('+15005550001'), 'failed');
  expect(refused.error).toEqual({ code: 'unreachable', message: expect.stringContaining('(') as string });
  const capped = await chatAppWithStatus(server, await send('+15005550011'), 'failed');
  expect(capped).toMatchObject({ error: { code: 'blocked' }, sent_at: time, delivered_at: null });
  // Read on arrival: nothing says that it was delivered.
  const read = await chatAppWithStatus(server, await send('+15005550018'), 'read');
  expect(read).toMatchObject({ delivered_at: read.read_at, read_at: time });
  const later = await send('+15005550017');
  const delivered = await chatAppWithStatus(server, later, 'delivered');
  await handedOff(later);
  clock.putForward(6_000);
  await chatAppWithStatus(server, later, 'read');
  const afterwards = await readChatApp(server, later);
  expect(afterwards.delivered_at).toBe(delivered.delivered_at);
  expect(afterwards.read_at! > afterwards.delivered_at!).toBe(true);
});

test('a hand-off whose answer was lost is settled by its receipt, and is not repeated', async () => {
  const { id: templateId } = await addChatTemplate(server, { content: written('It is on its way.') });
  const id = await sendChatApp(server, { to: '+15005550013', template_id: templateId });
  await handedOff(id);
  expect(await readChatApp(server, id)).toMatchObject({ status: 'sent', uncertain: true });
  clock.putForward(6_000);
  expect(await chatAppWithStatus(server, id, 'delivered')).toMatchObject({ uncertain: false });
});

test.each([
  ['nobody', {}, 400, /Say whom/],
  ['a number and a contact', { to: '+4915188000001', contact_id: 'x' }, 400, /Give to alone/],
  ['two kinds of contact', { contact_id: 'x', email: 'a@example.com' }, 400, /contact_id alone/],
  ['a contact that nobody knows', { external_id: 'nobody' }, 404, /no such contact/],
  ['no number', { to: '0151' }, 422, /^to must/],
  ['a number with more behind it', { to: '+4915188000001\r\nX: y' }, 422, /^to must/],
])('a message to %s is refused', async (_what, whom, status, message) => {
  const { id } = await addChatTemplate(idle, { content: written('Hello') });
  const response = await postChatApp(idle, { ...whom, template_id: id });
  expect([response.status, response.body.message]).toEqual([status, expect.stringMatching(message)]);
});

test.each([
  [
    'that is named twice',
    (id: string) => ({ template_id: id, template: 'a', language: 'en' }),
    422,
    /^template_id/,
  ],
  ['without its language', () => ({ template: 'a' }), 422, /^template_id/],
  ['that is not named', () => ({}), 422, /^template_id/],
  ['that nobody knows', () => ({ template: 'nothing', language: 'en_US' }), 404, /no such chat-app template/],
  ['whose id is none', () => ({ template_id: 'x\u0000' }), 422, /template_id/],
  [
    'whose id is unknown',
    () => ({ template_id: '0190b6f0-0000-7000-8000-000000000000' }),
    404,
    /no such chat/,
  ],
])('a template %s is refused', async (_what, name, status, message) => {
  const { id } = await addChatTemplate(idle, { content: written('Hello') });
  const response = await postChatApp(idle, { to: aNumber(), ...name(id) });
  expect([response.status, response.body.message]).toEqual([status, expect.stringMatching(message)]);
});

test('a template of another organization is as one that does not exist', async () => {
  const theirs = await addChatTemplate(server, {
    organizationId: other.organizationId,
    content: written('Hello'),
  });
  const body = { to: aNumber(), template_id: theirs.id };
  const [foreign, unknown] = [
    await postChatApp(server, body),
    await postChatApp(server, { ...body, template_id: '0190b6f0-0000-7000-8000-000000000000' }),
  ];
  expect([foreign.status, foreign.body.message]).toEqual([unknown.status, unknown.body.message]);
  expect((await postChatApp(server, body, authorize(other))).status).toBe(202);
});

test.each([
  [
    `status = 'pending', reviewed_at = null, next_step = 'review', due_at = now()`,
    /not approved: it is pending/,
  ],
  [`status = 'rejected', provider_state = 'rejected'`, /not approved: it is rejected/],
  [`category = 'marketing'`, /only be sent in a campaign/],
  [`provider_state = 'paused'`, /cannot be sent: paused/],
  [`provider_state = 'disabled'`, /cannot be sent: disabled/],
])('a template with %s is not sent', async (assignments, message) => {
  const { id } = await addChatTemplate(idle, { content: written('Hello') });
  await setTemplate(idle.installation, id, assignments);
  // Before its parameters are looked at, and after its name.
  const response = await postChatApp(idle, { to: aNumber(), template_id: id, parameters: { more: 'x' } });
  expect([response.status, response.body.message]).toEqual([400, expect.stringMatching(message)]);
});

const asked = 'Order {{order_number}} of {{first_name}}';

test.each<[string, Record<string, unknown>, RegExp]>([
  ['lacks one', { first_name: 'Ana' }, /parameters lacks order_number$/],
  ['lacks them all', {}, /parameters lacks order_number, first_name$/],
  ['has one more', { first_name: 'Ana', order_number: '7', plan: 'x' }, /parameters has plan, which/],
  ['calls one as objects do', { first_name: 'Ana', order_number: '7', constructor: 'x' }, /has constructor/],
  ['has a number', { first_name: 'Ana', order_number: 7 }, /parameters.order_number must be/],
  ['has an empty one', { first_name: ' ', order_number: '7' }, /parameters.first_name must not be empty/],
  ['has a line break', { first_name: 'A\nna', order_number: '7' }, /parameters.first_name .* line break/],
  ['has a tab', { first_name: 'A\tna', order_number: '7' }, /parameters.first_name .* tab/],
  ['has five blanks', { first_name: 'A     b', order_number: '7' }, /parameters.first_name .* four blanks/],
  ['has NUL', { first_name: 'A\u0000', order_number: '7' }, /parameters.first_name/],
  ['has half a character', { first_name: '\ud800', order_number: '7' }, /parameters.first_name/],
  ['is too long together', { first_name: 'a'.repeat(1_024), order_number: '7' }, /the body longer than 1024/],
])('a message whose parameters %s is refused', async (_what, parameters, message) => {
  const { id } = await addChatTemplate(idle, { content: written(asked) });
  const response = await postChatApp(idle, { to: aNumber(), template_id: id, parameters });
  expect([response.status, response.body.message]).toEqual([422, expect.stringMatching(message)]);
});

test('four blanks, and a text that is as long as it may be in characters, are taken', async () => {
  const { id } = await addChatTemplate(idle, { content: written('{{text}}') });
  for (const text of ['a    b', '😀'.repeat(1_024)]) {
    const response = await postChatApp(idle, { to: aNumber(), template_id: id, parameters: { text } });
    expect(response.status).toBe(202);
  }
});

test('whoever has opted out of everything gets nothing, by number or by contact, and who wants no campaigns gets the rest', async () => {
  const { id: template_id } = await addChatTemplate(idle, { content: written('Hello') });
  const stopped = await aContact(idle);
  const unwilling = await aContact(idle);
  const { database } = idle.installation;
  await database.transaction((transaction) =>
    addSuppressions(transaction, idle.installation, 'chatapp', [
      { organizationId: idle.organizationId, address: stopped.phone_number, reason: 'unsubscribe' },
    ]),
  );
  const consent = { consent: { chatapp: 'unsubscribed' } };
  expect((await idle.request('PATCH', `/v1/contacts/${unwilling.id}`, consent)).status).toBe(200);
  const statusOf = async (whom: object) => (await postChatApp(idle, { ...whom, template_id })).status;
  expect([
    await statusOf({ to: stopped.phone_number }),
    await statusOf({ contact_id: stopped.id }),
    await statusOf({ contact_id: unwilling.id }),
    await statusOf({ to: unwilling.phone_number }),
    await statusOf({ contact_id: (await aContact(idle)).id }),
  ]).toEqual([403, 403, 202, 202, 202]);
  // As after all that is wrong with the request itself.
  const wrong = await postChatApp(idle, { to: stopped.phone_number, template_id, parameters: { more: 'x' } });
  expect(wrong.status).toBe(422);
});

test('a notice that the provider has made marketing is sent for a day, to people who want it, and in campaigns alone then', async () => {
  const { id: template_id } = await addChatTemplate(idle, { content: written('Hello') });
  const unwilling = await aContact(idle, { consent: { chatapp: 'unsubscribed' } });
  const stopped = aNumber();
  const marketing = { reason: 'unsubscribe', scope: 'marketing' } as const;
  await addSuppressions(idle.installation.database, idle.installation, 'chatapp', [
    { organizationId: idle.organizationId, address: stopped, ...marketing },
    { organizationId: other.organizationId, address: '+491511111', ...marketing },
  ]);
  const numbers = [aNumber(), unwilling.phone_number, stopped, '+491511111'];
  const statuses = async () => {
    const responses = [];
    for (const to of numbers) responses.push((await postChatApp(idle, { to, template_id })).status);
    return responses;
  };
  expect(await statuses(), 'a notice').toEqual([202, 202, 202, 202]);
  const dayMs = 86_400_000;
  const from = new Date(idleClock.nowMs() + dayMs);
  await rowsOf(idle, 'update chat_templates set marketing_from = $2 where id = $1', [template_id, from]);
  expect(await statuses(), 'announced').toEqual([202, 202, 202, 202]);
  await setTemplate(idle.installation, template_id, `provider_category = 'marketing'`);
  expect(await statuses(), 'charged').toEqual([202, 403, 403, 202]);
  // What was accepted as a notice and has not left yet.
  const taken: string[] = [];
  const delivery = deliver(idle, async ({ to, confirm, reference }) => {
    await confirm();
    taken.push(to);
    return { kind: 'accepted', providerMessageId: reference.messageId, reply: null };
  });
  await eventually(
    () => rowsOf(idle, 'select from delivery_queue', []),
    (jobs) => jobs.length === 0,
  );
  await delivery.stop();
  expect(new Set(taken)).toEqual(new Set([numbers[0], numbers[3]]));
  idleClock.putForward(dayMs);
  const refused = await postChatApp(idle, { to: aNumber(), template_id });
  expect([refused.status, refused.body.message]).toEqual([
    400,
    expect.stringContaining('can only be sent in a campaign') as string,
  ]);
});

test('an error that says nothing of its reason is tried four times, and another one for longer', async () => {
  const { id: template_id } = await addChatTemplate(idle, { content: written('Hello') });
  const send = () => sendChatApp(idle, { to: aNumber(), template_id });
  const [unexplained, other] = [await send(), await send()];
  const tried: string[] = [];
  const delivery = deliver(idle, async ({ reference: { messageId }, confirm }) => {
    await confirm();
    tried.push(messageId);
    const reply = { code: null, enhancedCode: null, diagnostic: 'Some error.', remote: null };
    const deferred: ChatAppOutcome = { kind: 'deferred', reason: 'other', retryAfterMs: 1_000, reply };
    return messageId === unexplained ? { ...deferred, attemptsMax: 4 } : deferred;
  });
  const triesOf = (id: string) => tried.filter((messageId) => messageId === id).length;
  for (let tries = 1; tries <= 5; tries += 1) {
    await eventually(
      () => Promise.resolve(triesOf(other)),
      (times) => times >= tries,
    );
    await eventually(
      () => queued(idle, other),
      (job) => job?.claimed_by === null,
    );
    idleClock.putForward(2_000);
  }
  expect(await chatAppWithStatus(idle, unexplained, 'failed')).toMatchObject({ error: { code: 'other' } });
  expect(triesOf(unexplained)).toBe(4);
  await delivery.stop();
});

test('a contact without a number cannot be reached', async () => {
  const { id: template_id } = await addChatTemplate(idle, { content: written('Hello') });
  const { body } = await idle.request<{ id: string }>('POST', '/v1/contacts', { external_id: 'no phone' });
  const response = await postChatApp<ErrorBody>(idle, { contact_id: body.id, template_id });
  expect([response.status, response.body.message]).toEqual([400, 'The contact has no phone number.']);
});

test('each message takes one of the quota, and a repeated request takes none', async () => {
  const { id: template_id } = await addChatTemplate(idle, { content: written('Hello') });
  const { installation, organizationId } = idle;
  const [usage] = await rowsOf<{ used: number }>(
    idle,
    `select coalesce(sum(used), 0)::integer as used from quota_usage where organization_id = $1 and channel = 'chatapp'`,
    [organizationId],
  );
  await updateOrganization(installation, organizationId, { quotas: { chatapp: usage!.used + 1 } });
  const body = { to: aNumber(), template_id };
  const headers = { 'idempotency-key': 'once' };
  const first = await postChatApp(idle, body, headers);
  const again = await postChatApp(idle, body, headers);
  expect([again.status, again.text, again.headers.get('idempotent-replayed')]).toEqual([
    202,
    first.text,
    'true',
  ]);
  expect((await postChatApp(idle, body)).body).toMatchObject({ name: 'monthly_quota_exceeded' });
  expect((await postChatApp(idle, { ...body, to: aNumber() }, headers)).status).toBe(409);
  await updateOrganization(installation, organizationId, { quotas: { chatapp: null } });
});

const code = '837164209';

/** Every table, and how many of its rows have the text: in its words, or in its bytes. */
async function tracesOf(text: string, on: TestServer): Promise<string[]> {
  const tables = await rowsOf<{ name: string }>(
    on,
    `select c.relname as name from pg_class c
     where c.relkind in ('r', 'p') and not c.relispartition and c.relnamespace = current_schema()::regnamespace`,
  );
  expect(tables.length).toBeGreaterThan(30);
  const found: string[] = [];
  for (const { name } of tables) {
    const rows = await rowsOf(
      on,
      `select from "${name}" t where position($1 in t::text) > 0 or position($2 in t::text) > 0 limit 1`,
      [text, Buffer.from(text).toString('hex')],
    );
    if (rows.length > 0) found.push(name);
  }
  return found;
}

test('a code stands readable in no table while it waits, and is gone when it has left', async () => {
  const { id: template_id } = await addChatTemplate(idle, { category: 'authentication' });
  const { installation } = idle;
  const body = { to: aNumber(), template_id, parameters: { code } };
  const response = await postChatApp(idle, body, { 'idempotency-key': 'a code' });
  expect(response.status).toBe(202);
  const { id } = response.body;
  expect(await tracesOf(code, idle)).toEqual([]);
  expect(await readChatApp(idle, id)).toMatchObject({ parameters: { code: '[redacted]' }, status: 'queued' });
  const sealed = () => rowsOf(idle, 'select from attachment_contents where message_id = $1', [id]);
  expect(await sealed()).toHaveLength(1);

  const taken: ChatAppHandOff[] = [];
  const delivery = deliver(idle, async (handOff) => {
    await handOff.confirm();
    taken.push(handOff);
    return { kind: 'rejected', reason: 'other', reply: reply(`The code ${code} is refused`) };
  });
  const message = await chatAppWithStatus(idle, id, 'failed');
  await delivery.stop();
  expect(taken).toMatchObject([
    { to: body.to, parameters: { code }, template: { category: 'authentication' } },
  ]);
  expect(message.error?.message).toContain('The code [redacted] is refused');
  expect(message.parameters).toEqual({ code: '[redacted]' });
  expect(await sealed()).toEqual([]);
  expect(await tracesOf(code, idle)).toEqual([]);
  expect(installation.config.chatAppProvider).toBe('sandbox');
});

test('what is kept of a request with a code does not tell the code to whoever tries them all', async () => {
  const { id: template_id } = await addChatTemplate(idle, { category: 'authentication' });
  const body = { to: aNumber(), template_id, parameters: { code: '482913' } };
  const headers = { 'idempotency-key': 'sign in' };
  const [first, second] = [await postChatApp(idle, body, headers), await postChatApp(idle, body, headers)];
  expect([first.status, second.text]).toEqual([202, first.text]);
  const digest = (...parts: (string | Buffer)[]) =>
    parts.reduce((hash, part) => hash.update(part), createHash('sha256')).digest();
  const guess = digest('{}', '\n', digest(canonicalJson(body)));
  const kept = await rowsOf<{ fingerprint: Buffer }>(
    idle,
    `select fingerprint from idempotency_keys where key = 'sign in' and organization_id = $1`,
    [idle.organizationId],
  );
  expect(kept).toHaveLength(1);
  expect(kept[0]!.fingerprint.equals(guess)).toBe(false);
  const other = await postChatApp(idle, { ...body, parameters: { code: '482914' } }, headers);
  expect(other.status).toBe(409);
});

test('a code that is too long is refused, and not repeated to whoever reads the error', async () => {
  const { id: template_id } = await addChatTemplate(idle, { category: 'authentication' });
  const response = await postChatApp(idle, {
    to: aNumber(),
    template_id,
    parameters: { code: `${code}${code}` },
  });
  expect([response.status, response.body.message]).toEqual([
    422,
    'parameters.code must be at most 15 characters',
  ]);
});

const reply = (diagnostic: string) => ({ code: null, enhancedCode: null, diagnostic, remote: null });

/** Gives every message that is due to this, in place of a provider. */
function deliver(on: TestServer, handOff: (handOff: ChatAppHandOff) => Promise<ChatAppOutcome>) {
  const chatAppProvider = {
    name: 'the test',
    concurrency: 4,
    isReportedById: true,
    needsAccount: false,
    handOff,
  } as Partial<ChatAppProvider> as ChatAppProvider; // All that a delivery asks for.
  return startDelivery({
    ...on.installation,
    onCampaignProgress: () => undefined,
    onContactsChanged: () => undefined,
    channels: messageChannels,
    deliveries: [createChatAppDelivery({ ...on.installation, chatAppProvider })],
  });
}

async function queued(on: TestServer, id: string) {
  const [job] = await rowsOf<{ due_at: Date; attempts: number; claimed_by: number | null }>(
    on,
    'select due_at, attempts, claimed_by from delivery_queue where message_id = $1',
    [id],
  );
  return job;
}

test('a code whose answer was lost is repeated once after some seconds, unless a receipt comes', async () => {
  const { id: template_id } = await addChatTemplate(idle, { category: 'authentication' });
  const utility = await addChatTemplate(idle, { content: written('Hello') });
  const send = (more: object) =>
    sendChatApp(idle, { to: aNumber(), template_id, parameters: { code }, ...more });
  const [reported, silent] = [await send({}), await send({})];
  const other = await send({ template_id: utility.id, parameters: {} });
  const taken: string[] = [];
  const delivery = deliver(idle, async ({ reference, confirm }) => {
    await confirm();
    taken.push(reference.messageId);
    return { kind: 'unknown', reply: reply('The answer was lost') };
  });
  for (const id of [reported, silent]) {
    const job = await eventually(
      () => queued(idle, id),
      (waiting) => waiting?.attempts === 1 && waiting.claimed_by === null,
    );
    const pauseMs = job!.due_at.getTime() - idleClock.nowMs();
    expect(pauseMs).toBeLessThanOrEqual(8_000);
    expect(pauseMs).toBeGreaterThan(0);
  }
  await eventually(
    () => readChatApp(idle, other),
    ({ uncertain }) => uncertain,
  );
  const feedback = { onCampaignProgress: () => undefined, onContactsChanged: () => undefined };
  await applyReports({ ...idle.installation, ...feedback }, messageChannels.chatapp, [
    {
      job: { organizationId: idle.organizationId, messageId: reported, ordinal: 0 },
      status: 'delivered',
      failure: null,
    },
  ]);
  expect(await queued(idle, reported)).toBeUndefined();
  expect(await rowsOf(idle, 'select from attachment_contents where message_id = $1', [reported])).toEqual([]);
  idleClock.putForward(9_000);
  await eventually(
    () => queued(idle, silent),
    (job) => job === undefined,
  );
  await delivery.stop();
  const timesOf = (id: string) => taken.filter((messageId) => messageId === id).length;
  expect([reported, silent, other].map(timesOf)).toEqual([1, 2, 1]);
  expect(await readChatApp(idle, silent)).toMatchObject({ status: 'sent', uncertain: true });
});

test('a notice that was put off, and whose answer was lost then, may have been sent, and is shown so', async () => {
  const { id: template_id } = await addChatTemplate(idle, { content: written('Hello') });
  const id = await sendChatApp(idle, { to: aNumber(), template_id });
  let attempts = 0;
  const delivery = deliver(idle, async ({ confirm }) => {
    await confirm();
    attempts += 1;
    return attempts === 1
      ? { kind: 'deferred', reason: 'other', retryAfterMs: 1_000, reply: reply('Later') }
      : { kind: 'unknown', reply: reply('The answer was lost') };
  });
  await eventually(
    () => queued(idle, id),
    (waiting) => waiting?.attempts === 1 && waiting.claimed_by === null,
  );
  expect(await readChatApp(idle, id)).toMatchObject({ status: 'queued', uncertain: false });
  idleClock.putForward(2_000);
  await eventually(
    () => queued(idle, id),
    (job) => job === undefined,
  );
  await delivery.stop();
  expect(await readChatApp(idle, id)).toMatchObject({ status: 'sent', uncertain: true });
});

test('a code whose receipt came before it was known that the answer was lost is not repeated', async () => {
  const { id: template_id } = await addChatTemplate(idle, { category: 'authentication' });
  const id = await sendChatApp(idle, { to: aNumber(), template_id, parameters: { code } });
  const feedback = { onCampaignProgress: () => undefined, onContactsChanged: () => undefined };
  const delivery = deliver(idle, async ({ reference, confirm }) => {
    await confirm();
    await applyReports({ ...idle.installation, ...feedback }, messageChannels.chatapp, [
      { job: reference, status: 'delivered', failure: null },
    ]);
    return { kind: 'unknown', reply: reply('The answer was lost') };
  });
  await eventually(
    () => queued(idle, id),
    (job) => job === undefined,
  );
  await delivery.stop();
  expect(await readChatApp(idle, id)).toMatchObject({ status: 'delivered', uncertain: false });
  expect(await rowsOf(idle, 'select from attachment_contents where message_id = $1', [id])).toEqual([]);
  const [recipient] = await rowsOf<{ ambiguities: number }>(
    idle,
    'select ambiguities from recipients where message_id = $1',
    [id],
  );
  expect(recipient).toEqual({ ambiguities: 1 });
});

test('a code whose worker died is repeated, and a notice is not', async () => {
  const { id: template_id } = await addChatTemplate(idle, { category: 'authentication' });
  const utility = await addChatTemplate(idle, { content: written('Hello') });
  const codeId = await sendChatApp(idle, { to: aNumber(), template_id, parameters: { code } });
  const noticeId = await sendChatApp(idle, { to: aNumber(), template_id: utility.id });
  // A worker had announced both.
  const [dead] = await rowsOf<{ epoch: number }>(
    idle,
    `insert into workers (epoch, host, pid, started_at) values (nextval('worker_epochs'), 'there', 1, now()) returning epoch`,
  );
  const ids = [codeId, noticeId];
  await rowsOf(
    idle,
    'update delivery_queue set claimed_by = $1, claim_number = 1 where message_id = any ($2::uuid[])',
    [dead!.epoch, ids],
  );
  await rowsOf(
    idle,
    `insert into hand_offs (epoch, batch, organization_ids, message_ids, ordinals, claim_numbers)
     values ($1, 1, array[$2::uuid, $2::uuid], $3::uuid[], '{0, 0}', '{1, 1}')`,
    [dead!.epoch, idle.organizationId, ids],
  );
  const delivery = deliver(idle, () => Promise.reject(new Error('nothing is due yet')));
  const job = await eventually(
    () => queued(idle, codeId),
    (waiting) => waiting?.attempts === 1 && waiting.claimed_by === null,
  );
  expect(job!.due_at.getTime() - idleClock.nowMs()).toBeLessThanOrEqual(8_000);
  expect(await queued(idle, noticeId)).toBeUndefined();
  await delivery.stop();
  expect(await readChatApp(idle, noticeId)).toMatchObject({ status: 'sent', uncertain: true });
});

test('a code is given up when it ends, and any other message after a day', async () => {
  const { id: template_id } = await addChatTemplate(idle, { category: 'authentication' });
  const utility = await addChatTemplate(idle, { content: written('Hello') });
  const first = await sendChatApp(idle, { to: aNumber(), template_id, parameters: { code } });
  const second = await sendChatApp(idle, { to: aNumber(), template_id: utility.id });
  idleClock.putForward(11 * 60_000);
  const defer = () =>
    deliver(idle, () =>
      Promise.resolve({ kind: 'deferred', reason: 'rate_limited', reply: reply('Not now') }),
    );
  const delivery = defer();
  expect(await chatAppWithStatus(idle, first, 'failed')).toMatchObject({
    error: { code: 'expired' },
    sent_at: null,
  });
  await eventually(
    () => queued(idle, second),
    (job) => job?.attempts === 1 && job.claimed_by === null,
  );
  expect(await readChatApp(idle, second)).toMatchObject({
    status: 'queued',
    error: { code: 'rate_limited' },
  });
  await delivery.stop();
  idleClock.putForward(24 * 60 * 60_000);
  const later = defer();
  expect(await chatAppWithStatus(idle, second, 'failed')).toMatchObject({ error: { code: 'expired' } });
  await later.stop();
});

test('a template that was stopped while a message waited is not sent, and one that was paused is waited for', async () => {
  const [paused, disabled] = [
    await addChatTemplate(idle, { content: written('Hello') }),
    await addChatTemplate(idle, { content: written('Hello') }),
  ];
  const waiting = await sendChatApp(idle, { to: aNumber(), template_id: paused.id });
  const over = await sendChatApp(idle, { to: aNumber(), template_id: disabled.id });
  await setTemplate(idle.installation, paused.id, `provider_state = 'paused'`);
  await setTemplate(idle.installation, disabled.id, `provider_state = 'disabled'`);
  const taken: string[] = [];
  const delivery = deliver(idle, async ({ reference, confirm }) => {
    await confirm();
    taken.push(reference.messageId);
    return { kind: 'accepted', providerMessageId: reference.messageId, reply: null };
  });
  expect(await chatAppWithStatus(idle, over, 'failed')).toMatchObject({
    error: { code: 'template_unavailable' },
  });
  await eventually(
    () => queued(idle, waiting),
    (job) => job?.attempts === 1 && job.claimed_by === null,
  );
  expect(await readChatApp(idle, waiting)).toMatchObject({
    status: 'queued',
    error: { code: 'template_unavailable' },
  });
  expect(taken).toEqual([]);
  await setTemplate(idle.installation, paused.id, `provider_state = 'approved'`);
  idleClock.putForward(31 * 60_000);
  await chatAppWithStatus(idle, waiting, 'sent');
  await delivery.stop();
  expect(taken).toEqual([waiting]);
});

test('what was accepted before its template was edited says what the template says by then, or why it cannot', async () => {
  const [one, two] = ['Hello {{first_name}}.', 'Hello {{first_name}}, {{order}} came.'] as const;
  const accept = async (before: string, after: string, parameters: Record<string, string>) => {
    const { id: template_id } = await addChatTemplate(idle, { content: written(before) });
    const id = await sendChatApp(idle, { to: aNumber(), template_id, parameters });
    const content = JSON.stringify(written(after));
    await rowsOf(idle, 'update chat_templates set content = $2 where id = $1', [template_id, content]);
    return id;
  };
  const fewer = await accept(two, one, { first_name: 'Ana', order: '7' });
  const more = await accept(one, two, { first_name: 'Ana' });
  const taken: unknown[] = [];
  const delivery = deliver(idle, async ({ reference, confirm, parameters, template }) => {
    await confirm();
    taken.push([template.content, parameters]);
    return { kind: 'accepted', providerMessageId: reference.messageId, reply: null };
  });
  await chatAppWithStatus(idle, fewer, 'sent');
  expect(await chatAppWithStatus(idle, more, 'failed')).toMatchObject({
    error: { code: 'invalid_message', message: expect.stringContaining('lacks order') as string },
  });
  await delivery.stop();
  expect(taken).toEqual([[written(one), { first_name: 'Ana' }]]);
  expect((await readChatApp(idle, fewer)).parameters).toEqual({ first_name: 'Ana', order: '7' });
});

test('what a hand-off finds out about a template is kept, for its own organization', async () => {
  const [own, theirs] = [
    await addChatTemplate(idle, { name: 'found', content: written('Hello') }),
    await addChatTemplate(idle, { name: 'not_found', content: written('Hello') }),
  ];
  const id = await sendChatApp(idle, { to: aNumber(), template_id: own.id });
  const delivery = deliver(idle, async ({ confirm }) => {
    await confirm();
    return {
      kind: 'rejected',
      reason: 'template_unavailable',
      reply: reply('Template is disabled'),
      finding: { kind: 'template', state: 'disabled', words: 'Template is disabled' },
    };
  });
  await chatAppWithStatus(idle, id, 'failed');
  await delivery.stop();
  const states = await rowsOf(
    idle,
    'select provider_state from chat_templates where id = any ($1) order by name',
    [[own.id, theirs.id]],
  );
  expect(states).toEqual([{ provider_state: 'disabled' }, { provider_state: 'approved' }]);
  expect((await postChatApp(idle, { to: aNumber(), template_id: own.id })).status).toBe(400);
});

test('a contact who is deleted while a message waits gets nothing', async () => {
  const { id: template_id } = await addChatTemplate(idle, { content: written('Hello') });
  const gone = await aContact(idle);
  const id = await sendChatApp(idle, { contact_id: gone.id, template_id });
  await idle.request('DELETE', `/v1/contacts/${gone.id}`);
  const delivery = deliver(idle, () => Promise.reject(new Error('nothing is to be handed over')));
  const { error } = await chatAppWithStatus(idle, id, 'failed');
  await delivery.stop();
  expect(error?.code).toBe('contact_deleted');
});

test('what was delivered has not failed, in whichever order a provider says so', async () => {
  const { id: template_id } = await addChatTemplate(idle, { content: written('Hello') });
  const feedback = { onCampaignProgress: () => undefined, onContactsChanged: () => undefined };
  const failure = {
    type: 'soft',
    class: 'blocked',
    smtpCode: null,
    enhancedCode: null,
    diagnostic: '131049',
    remote: null,
  };
  const report = (messageId: string, statuses: readonly ('delivered' | 'failed' | 'opened')[]) =>
    applyReports(
      { ...idle.installation, ...feedback },
      messageChannels.chatapp,
      statuses.map((status) => ({
        job: { organizationId: idle.organizationId, messageId, ordinal: 0 },
        status,
        failure: status === 'failed' ? { ...failure, type: 'soft' as const } : null,
      })),
    );
  const orders = [
    [['delivered'], ['failed']],
    [['failed'], ['delivered']],
    [['failed', 'delivered']],
    [['failed'], ['opened'], ['delivered']],
  ] as const;
  const shown = [];
  for (const order of orders) {
    const id = await sendChatApp(idle, { to: aNumber(), template_id });
    for (const statuses of order) await report(id, statuses);
    const { status, error } = await readChatApp(idle, id);
    shown.push([status, error]);
    await rowsOf(idle, 'delete from delivery_queue where message_id = $1', [id]);
  }
  expect(shown).toEqual([
    ['delivered', null],
    ['delivered', null],
    ['delivered', null],
    ['read', null],
  ]);
});
