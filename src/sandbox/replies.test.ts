/** What is said as the recipient of a message in the sandbox, and what follows from it. */
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { keepMessage, type KeptMessage, sandboxToken } from './sandbox.ts';
import { addChatTemplate, postChatApp, sendChatApp, written } from '../../test/support/chat-app-journey.ts';
import { authorize, eventually, rowsOf, type Sender } from '../../test/support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../../test/support/server.ts';
import { addApprovedSender, sendSms, smsWithStatus } from '../../test/support/sms-journey.ts';

let server: TestServer;
let other: Sender & { organizationId: string };
let templateId: string;
let othersTemplateId: string;

const ownNumber = '14155550100';
const buttons = [
  { type: 'url', text: 'Track', url: 'https://shop.example/t' },
  { type: 'quick_reply', text: 'Stop' },
  { type: 'quick_reply', text: 'Thanks' },
] as const;

beforeAll(async () => {
  const providerSettings = { POSTILLION_SANDBOX_REVIEW_MS: '0' };
  server = await startTestServer({ worker: true, providerSettings });
  other = await createSender(server.installation, 'other.example');
  await addApprovedSender(server, 'Acme');
  await addApprovedSender(server, ownNumber);
  const content = written('Hello', [{ type: 'buttons', buttons }]);
  templateId = (await addChatTemplate(server, { content })).id;
  othersTemplateId = (await addChatTemplate(server, { content, organizationId: other.organizationId })).id;
});
afterAll(() => server.stop());

let made = 0;
const aNumber = () => `+4915188${String((made += 1)).padStart(6, '0')}`;

/** As a page, which has no key. */
const ask = <Body = { message: string }>(
  method: string,
  path: string,
  body?: unknown,
  headers: Record<string, string> = {},
) => server.request<Body>(method, `/sandbox/messages${path}`, body, { authorization: 'none', ...headers });

type Standing = {
  can_reply: boolean;
  obstacle: string | null;
  opted_out: boolean;
  marketing_stopped: boolean | null;
  consent: string | null;
};

const standingOf = async (id: string) => (await ask<Standing>('GET', `/${id}/replies`)).body;
const untilStanding = (id: string, wanted: Partial<Standing>) =>
  eventually(
    () => standingOf(id),
    (standing) => Object.entries(wanted).every(([name, value]) => standing[name as keyof Standing] === value),
  );

async function say(id: string, said: object): Promise<void> {
  const response = await ask('POST', `/${id}/replies`, said);
  expect([response.status, response.text]).toEqual([200, expect.anything()]);
}

/** The copy of what was sent to a number last. */
const keptFor = async (to: string, messageId: string) => {
  const { data } = await eventually(
    async () =>
      (
        await ask<{ data: { id: string; message_id: string }[] }>(
          'GET',
          `?to=${encodeURIComponent(to)}&limit=100`,
        )
      ).body,
    (list) => list.data.some(({ message_id }) => message_id === messageId),
  );
  return data.find(({ message_id }) => message_id === messageId)!.id;
};

const aContact = async (number: string, sender?: Sender) =>
  (await server.request<{ id: string }>('POST', '/v1/contacts', { phone_number: number }, authorize(sender)))
    .body.id;

/** A chat-app message in the inbox, to the number of a contact. */
async function aMessage() {
  const number = aNumber();
  await aContact(number);
  const messageId = await sendChatApp(server, { to: number, template_id: templateId });
  return { number, id: await keptFor(number, messageId) };
}

const keep = async (message: Partial<KeptMessage>) => {
  const messageId = server.installation.newId();
  await keepMessage(server.installation, {
    organizationId: server.organizationId,
    channel: 'chatapp',
    messageId,
    ordinal: 0,
    recipient: aNumber(),
    sender: 'notice en_US',
    outcome: 'delivered',
    source: Buffer.from(JSON.stringify({ body: 'Hello', buttons })),
    ...message,
  });
  const [row] = await rowsOf<{ id: string }>(
    server,
    'select id from sandbox_messages where message_id = $1',
    [messageId],
  );
  return row!.id;
};

test('a quick reply that says Stop opts the number out, and START in again; of this organization alone', async () => {
  const { number, id } = await aMessage();
  const others = await aContact(number, other);
  const sendAgain = (more: object, sender?: Sender) =>
    postChatApp(server, { to: number, template_id: templateId, ...more }, authorize(sender));
  expect(await standingOf(id)).toEqual({
    can_reply: true,
    obstacle: null,
    opted_out: false,
    marketing_stopped: false,
    consent: 'subscribed',
  });
  await say(id, { button: 1 });
  await untilStanding(id, { opted_out: true, consent: 'unsubscribed' });
  expect((await sendAgain({})).status).toBe(403);
  expect(
    (await sendAgain({ contact_id: others, to: undefined, template_id: othersTemplateId }, other)).status,
  ).toBe(202);
  await say(id, { text: 'Start' });
  await untilStanding(id, { opted_out: false, consent: 'subscribed' });
  expect((await sendAgain({})).status).toBe(202);
});

test('the commands of the README lead from a template to a message whose button says STOP', async () => {
  const readme = readFileSync(new URL('../../README.md', import.meta.url), 'utf8');
  const commands = readme
    .split('```')
    .find((block) => block.includes('/v1/chatapp/'))!
    .split('\n\n')
    .map((command) => ({
      method: /-X (\w+)/.exec(command)?.[1] ?? 'GET',
      path: /:8025([^' ]+)/.exec(command)![1]!,
      body: /-d '(.*)'/.exec(command)?.[1],
    }));
  const [create, look, send] = commands.map(
    ({ method, path, body }) =>
      () =>
        server.request<{ id: string }>(method, path, body),
  );
  expect((await create!()).status).toBe(201);
  await eventually(look!, ({ text }) => text.includes('"status":"approved"'));
  const sent = await send!();
  expect(sent.status).toBe(202);
  const { to } = JSON.parse(commands[2]!.body!) as { to: string };
  const id = await keptFor(to, sent.body.id);
  await say(id, { button: 0 });
  await untilStanding(id, { opted_out: true });
  expect((await send!()).status).toBe(403);
});

test('what is no keyword changes nothing', async () => {
  const { id } = await aMessage();
  await say(id, { button: 2 });
  await say(id, { text: 'Please stop by on Monday 🙂' });
  await eventually(
    () => rowsOf(server, 'select id from chat_app_events'),
    (left) => left.length === 0,
  );
  expect(await standingOf(id)).toMatchObject({ opted_out: false, consent: 'subscribed' });
});

test('marketing that is stopped ends campaigns alone, until it is resumed', async () => {
  const { number, id } = await aMessage();
  await say(id, { marketing: 'stop' });
  await untilStanding(id, { opted_out: false, marketing_stopped: true, consent: 'unsubscribed' });
  expect((await postChatApp(server, { to: number, template_id: templateId })).status).toBe(202);
  await say(id, { marketing: 'resume' });
  await untilStanding(id, { marketing_stopped: false, consent: 'subscribed' });
});

test('a text from a number can be answered too, and one from a name cannot', async () => {
  const number = aNumber();
  const [byNumber, byName] = [
    await sendSms(server, { to: number, from: ownNumber }),
    await sendSms(server, { to: number }),
  ];
  const id = await keptFor(number, byNumber);
  await say(id, { text: 'STOP' });
  await untilStanding(id, { opted_out: true, marketing_stopped: null, consent: null });
  const refused = await smsWithStatus(server, await sendSms(server, { to: number }), 'failed');
  expect(refused.error).toMatchObject({ code: 'opted_out' });
  expect(await ask('POST', `/${id}/replies`, { marketing: 'stop' })).toMatchObject({ status: 422 });
  expect(await ask('POST', `/${id}/replies`, { button: 1 })).toMatchObject({ status: 422 });
  const named = await keptFor(number, byName);
  expect(await standingOf(named)).toEqual({
    can_reply: false,
    obstacle: 'Its sender is a name, and only numbers can be answered.',
  });
  expect(await ask('POST', `/${named}/replies`, { text: 'STOP' })).toMatchObject({ status: 400 });
});

test.each(['email', 'push'] as const)('nobody answers to %s', async (channel) => {
  const id = await keep({ channel, source: Buffer.from('Subject: a\r\n\r\nb') });
  expect(await standingOf(id)).toMatchObject({ can_reply: false, obstacle: expect.stringContaining('Only') });
  expect(await ask('POST', `/${id}/replies`, { text: 'STOP' })).toMatchObject({ status: 400 });
});

test.each<[string, unknown]>([
  ['nothing', {}],
  ['two things', { text: 'STOP', marketing: 'stop' }],
  ['an empty text', { text: ' ' }],
  ['a number', { text: 7 }],
  ['a list', { text: ['STOP'] }],
  ['NUL', { text: 'STOP\0' }],
  ['half a pair', { text: 'STOP\ud800' }],
  ['too long a text', { text: 'x'.repeat(4_097) }],
  ['another button', { button: 3 }],
  ['a link', { button: 0 }],
  ['a button before the first', { button: -1 }],
  ['a button between two', { button: 1.5 }],
  ['the name of a member of lists', { button: 'length' }],
  ['a text for a button', { button: '1' }],
  ['another setting', { marketing: 'pause' }],
  ['somebody else', { text: 'STOP', person: '+4915112345678' }],
  ['another organization', { text: 'STOP', organization_id: '0199c0de-1111-7000-8000-000000000001' }],
])('%s is no answer', async (_, said) => {
  const id = await keep({});
  expect(await ask('POST', `/${id}/replies`, said)).toMatchObject({ status: 422 });
  expect(await rowsOf(server, 'select id from chat_app_events')).toEqual([]);
});

test('what is no JSON object is refused, and a body of 30 MB before it has come', async () => {
  const id = await keep({});
  for (const body of ['', 'null', '[]', '7', '{', 'text=STOP', '{"__proto__":{"text":"STOP"}}'])
    expect((await ask('POST', `/${id}/replies`, body)).status).toBeGreaterThanOrEqual(400);
  const large = JSON.stringify({ text: 'x'.repeat(30 * 1_048_576) });
  expect(await ask('POST', `/${id}/replies`, large).catch(() => ({ status: 413 }))).toMatchObject({
    status: 413,
  });
  for (const type of ['text/plain', 'application/x-www-form-urlencoded'])
    expect(await ask('POST', `/${id}/replies`, '{"text":"STOP"}', { 'content-type': type })).toMatchObject({
      status: 400,
    });
  expect(await rowsOf(server, 'select id from chat_app_events')).toEqual([]);
});

test('a message that is not there is not found, whatever its id looks like', async () => {
  for (const id of [server.installation.newId(), 'x', '..%2f..', '%00', `${server.installation.newId()}0`]) {
    expect(await ask('POST', `/${id}/replies`, { text: 'STOP' })).toMatchObject({ status: 404 });
    expect(await ask('GET', `/${id}/replies`)).toMatchObject({ status: 404 });
  }
});

test('a page of another site says nothing', async () => {
  const { id } = await aMessage();
  const foreign: Record<string, string>[] = [
    { 'sec-fetch-site': 'cross-site', origin: 'https://evil.example' },
    { 'sec-fetch-site': 'same-site', origin: 'http://127.0.0.1:9' },
    { origin: 'https://evil.example' },
    { origin: 'null' },
  ];
  for (const headers of foreign)
    expect(await ask('POST', `/${id}/replies`, { text: 'STOP' }, headers)).toMatchObject({ status: 403 });
  expect(await rowsOf(server, 'select id from chat_app_events')).toEqual([]);
  expect(await standingOf(id)).toMatchObject({ opted_out: false });
});

test('who may not open the sandbox finds no answers either', async () => {
  const guarded = await startTestServer({ sandboxAccess: 'token' });
  try {
    const path = `/sandbox/messages/${guarded.installation.newId()}/replies`;
    const open = (query = '') =>
      guarded.request<{ message: string }>(
        'POST',
        `${path}${query}`,
        { text: 'STOP' },
        { authorization: 'none' },
      );
    expect((await open()).body.message).toBe('There is no such route.');
    const { secrets } = guarded.installation;
    expect((await open(`?token=${sandboxToken(secrets)}`)).body.message).not.toBe('There is no such route.');
  } finally {
    await guarded.stop();
  }
});

test('with another provider nobody speaks for a person whose number it may be', async () => {
  const moved = await startTestServer({
    chatAppProvider: 'whatsapp',
    smsProvider: 'twilio',
    publicUrl: 'https://post.example',
    sandboxAccess: 'any',
    providerSettings: { POSTILLION_TWILIO_URL: `https://AC${'0'.repeat(32)}:${'1'.repeat(32)}@twilio.test` },
  });
  try {
    for (const [channel, sender] of [
      ['chatapp', 'notice en_US'],
      ['sms', ownNumber],
    ] as const) {
      const messageId = moved.installation.newId();
      await keepMessage(moved.installation, {
        organizationId: moved.organizationId,
        channel,
        messageId,
        ordinal: 0,
        recipient: '+4915112345678',
        sender,
        outcome: 'delivered',
        source: Buffer.from('{"body":"Hello"}'),
      });
      const [row] = await rowsOf<{ id: string }>(
        moved,
        'select id from sandbox_messages where message_id = $1',
        [messageId],
      );
      const path = `/sandbox/messages/${row!.id}/replies`;
      expect(await moved.request('POST', path, { text: 'STOP' })).toMatchObject({ status: 400 });
      expect((await moved.request('GET', path)).body).toMatchObject({ can_reply: false });
    }
    const told = 'select id from chat_app_events union all select id from sms_events';
    expect(await rowsOf(moved, told)).toEqual([]);
  } finally {
    await moved.stop();
  }
});
