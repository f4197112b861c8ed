/** What programs keep with their messages on every channel: shown to them, told to them, sent to nobody, and erased. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { addChatTemplate } from '../support/chat-app-journey.ts';
import { anEmail, authorize, eventually, queueOf, rowsOf } from '../support/email-journey.ts';
import { androidApp, register, setUpPush } from '../support/push-journey.ts';
import { addApprovedSender } from '../support/sms-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: { organizationId: string; key: string };
let contactId: string;

const canary = 'canary-of-metadata';
const metadata = { order: `${canary} 1042`, 'Kunden Nr.': 'zwölf' };
const phoneNumber = '+14155550188';
const email = 'kept@example.com';

beforeAll(async () => {
  server = await startTestServer({ worker: true });
  other = await createSender(server.installation, 'elsewhere.example');
  await addApprovedSender(server, 'Keeper');
  await setUpPush(server);
  const contact = await server.request<{ id: string }>('POST', '/v1/contacts', {
    email,
    phone_number: phoneNumber,
  });
  contactId = contact.body.id;
  await register(server, { ...androidApp('of-metadata'), contact_id: contactId });
  for (const sender of [undefined, other])
    await server.request('POST', '/v1/webhooks', { kind: 'poll', events: ['*'] }, authorize(sender));
});
afterAll(() => server.stop());

/** What is sent on each channel, to the contact. */
const bodies: Readonly<Record<string, () => Promise<Record<string, unknown>>>> = {
  email: () => Promise.resolve(anEmail({ to: [email] })),
  sms: () => Promise.resolve({ from: 'Keeper', to: phoneNumber, body: 'Hello' }),
  push: () => Promise.resolve({ contact_id: contactId, title: 'Hello', body: 'There' }),
  chatapp: async () => {
    const { id } = await addChatTemplate(server);
    return { contact_id: contactId, template_id: id, parameters: { first_name: 'Ann' } };
  },
};
const channels = Object.keys(bodies);

type Sent = { id: string; metadata: Record<string, string> };

async function send(channel: string, more: object): Promise<string> {
  const body = { ...(await bodies[channel]!()), ...more };
  const response = await server.request<{ id: string }>('POST', `/v1/${channel}/send`, body);
  expect([response.status, response.text]).toEqual([202, response.text]);
  await eventually(
    () => queueOf(server, response.body.id),
    (jobs) => jobs.length === 0,
  );
  return response.body.id;
}

const read = async (channel: string, id: string) =>
  (await server.request<Sent>('GET', `/v1/${channel}/${id}`)).body;

describe.each(channels)('a message by %s', (channel) => {
  test('has what it was given, in its record, in lists, and in what is told of it', async () => {
    const [id, without] = [await send(channel, { metadata }), await send(channel, {})];
    expect((await read(channel, id)).metadata).toEqual(metadata);
    expect((await read(channel, without)).metadata).toEqual({});
    const { body } = await server.request<{ data: Sent[] }>('GET', `/v1/${channel}?limit=2`);
    expect(body.data.map((one) => one.metadata)).toEqual([{}, metadata]);
    const log = async (sender?: { key: string }) =>
      (
        await server.request<{ data: { data: Sent }[] }>(
          'GET',
          '/v1/webhook-events?limit=200',
          undefined,
          authorize(sender),
        )
      ).body.data.map(({ data }) => data);
    const told = await eventually(
      async () => (await log()).filter((data) => data.id === id || data.id === without),
      (events) => new Set(events.map((event) => event.id)).size === 2,
    );
    for (const event of told) expect(event.metadata).toEqual(event.id === id ? metadata : {});
    expect(await log(other)).toEqual([]);
  });

  test('is sent without it', async () => {
    const id = await send(channel, { metadata });
    const contents = await rowsOf<{ content: string }>(
      server,
      `select content::text as content from message_contents where message_id = '${id}'`,
    );
    expect(contents).toHaveLength(1);
    expect(contents[0]!.content).not.toContain(canary);
    // Whatever left the house on any channel stands here, as it left.
    const left = await rowsOf<{ row: string }>(server, 'select s::text as row from sandbox_messages s');
    expect(left.length).toBeGreaterThan(0);
    const forms = [canary, Buffer.from(canary).toString('hex'), Buffer.from(canary).toString('base64')];
    expect(left.filter(({ row }) => forms.some((form) => row.includes(form)))).toEqual([]);
  });

  test.each([
    [
      'more than twenty',
      Object.fromEntries(Array.from({ length: 21 }, (_, index) => [`k${index}`, 'v'])),
      /^metadata must have at most 20 fields$/,
    ],
    [
      'a long name',
      { ['k'.repeat(41)]: 'v' },
      /^metadata\.k+… is not an allowed name|^metadata\.k+ is not an allowed name/,
    ],
    ['a name without characters', { '': 'v' }, /is not an allowed name/],
    ['a long value', { key: '𝒳'.repeat(501) }, /^metadata\.key must be at most 500 characters$/],
    ['a number', { key: 7 }, /^metadata\.key must be a string$/],
    ['a list', ['v'], /^metadata must be an object$/],
  ])('is refused with %s', async (_what, wrong, issue) => {
    const body = { ...(await bodies[channel]!()), metadata: wrong };
    const { status, body: answer } = await server.request<{ message: string }>(
      'POST',
      `/v1/${channel}/send`,
      body,
    );
    expect([status, answer.message]).toEqual([422, expect.stringMatching(issue)]);
  });

  test('takes as much as it may have', async () => {
    const full = Object.fromEntries(
      Array.from({ length: 20 }, (_, index) => [`${index}`.padEnd(40, 'k'), '𝒳'.repeat(500)]),
    );
    expect((await read(channel, await send(channel, { metadata: full }))).metadata).toEqual(full);
  });
});

test('what is kept with messages goes with the contact that they were for', async () => {
  const ids: string[] = [];
  for (const channel of channels) ids.push(await send(channel, { metadata }));
  expect((await read('push', ids[2]!)).metadata).toEqual(metadata);
  await server.request('DELETE', `/v1/contacts/${contactId}`);
  for (const [index, channel] of channels.entries()) {
    const erased = await eventually(
      () => read(channel, ids[index]!),
      (record) => Object.keys(record.metadata).length === 0,
    );
    expect(erased.metadata).toEqual({});
  }
  const kept = await rowsOf<{ count: number }>(
    server,
    `select count(*)::integer as count
     from messages m
     where m.organization_id = '${server.organizationId}' and m.details::text like '%${canary}%'`,
  );
  expect(kept).toEqual([{ count: 0 }]);
});
