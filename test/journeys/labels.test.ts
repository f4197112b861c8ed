/** What programs keep with their messages on every channel: shown to them, told to them, and sent to nobody; texts are erased. */
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
const tagCanary = 'canary-of-tags';
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

type Sent = { id: string; metadata: Record<string, string>; tags: string[] };

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
    const id = await send(channel, { metadata, tags: [tagCanary] });
    const contents = await rowsOf<{ content: string }>(
      server,
      `select content::text as content from message_contents where message_id = '${id}'`,
    );
    expect(contents).toHaveLength(1);
    for (const word of [canary, tagCanary]) expect(contents[0]!.content).not.toContain(word);
    // Whatever left the house on any channel stands here, as it left.
    const left = await rowsOf<{ row: string }>(server, 'select s::text as row from sandbox_messages s');
    expect(left.length).toBeGreaterThan(0);
    const forms = [canary, tagCanary].flatMap((word) => [
      word,
      Buffer.from(word).toString('hex'),
      Buffer.from(word).toString('base64'),
    ]);
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

  test('has tags, each once and composed, by which it is listed and told of', async () => {
    const name = `of ${channel}`;
    const [zoe, first, both] = ['Zoe\u0308', `first ${name}`, `both ${name}`];
    const ids = [
      await send(channel, { tags: [first, both, zoe] }),
      await send(channel, { tags: [both, both] }),
      await send(channel, { tags: [] }),
    ];
    const shown = await Promise.all(ids.map(async (id) => (await read(channel, id)).tags));
    expect(shown).toEqual([[first, both, 'Zoë'], [both], []]);
    const listed = async (query: Record<string, string>, sender?: { key: string }) =>
      (
        await server.request<{ data: Sent[] }>(
          'GET',
          `/v1/${channel}?${new URLSearchParams(query).toString()}`,
          undefined,
          authorize(sender),
        )
      ).body.data.map(({ id }) => id);
    expect(await listed({ tag: both })).toEqual([ids[1], ids[0]]);
    expect(await listed({ tag: both, limit: '1', after: ids[1]! })).toEqual([ids[0]]);
    expect(await listed({ tag: both, limit: '1', before: ids[0]! })).toEqual([ids[1]]);
    expect(await listed({ tag: first })).toEqual([ids[0]]);
    expect(await listed({ tag: zoe })).toEqual([ids[0]]);
    expect(await listed({ tag: both.toUpperCase() })).toEqual([]);
    expect(await listed({ tag: both, status: 'failed' })).toEqual([]);
    expect(await listed({ tag: both }, other)).toEqual([]);
    for (const elsewhere of channels.filter((one) => one !== channel)) {
      const { body } = await server.request<{ data: Sent[] }>(
        'GET',
        `/v1/${elsewhere}?tag=${encodeURIComponent(both)}`,
      );
      expect(body.data).toEqual([]);
    }
    const told = await eventually(
      async () =>
        (
          await server.request<{ data: { data: Sent }[] }>('GET', '/v1/webhook-events?limit=200')
        ).body.data.flatMap(({ data }) => (data.id === ids[0] ? [data.tags] : [])),
      (tags) => tags.length > 0,
    );
    expect(told[0]).toEqual([first, both, 'Zoë']);
  });

  test.each([
    ['eleven', Array.from({ length: 11 }, (_, index) => `tag ${index}`), /^tags must have at most 10 items$/],
    ['an empty one', [''], /^tags\[0\]/],
    ['blanks', [' '], /^tags\[0\]/],
    ['two lines', ['a\nb'], /^tags\[0\]/],
    ['a long one', ['x'.repeat(101)], /^tags\[0\] must be at most 100 characters$/],
    ['a text', 'tag', /^tags must be an array$/],
  ])('is refused with tags of %s', async (_what, wrong, issue) => {
    const body = { ...(await bodies[channel]!()), tags: wrong };
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

test('tags are kept in whichever way a message is stored, and not of one that is refused', async () => {
  const tags = ['in every way'];
  const listed = async () =>
    (await server.request<{ data: Sent[] }>('GET', '/v1/email?limit=100&tag=in+every+way')).body.data.map(
      ({ id }) => id,
    );
  const file = { filename: 'a.txt', content: 'YQ==' };
  const ids = [
    await send('email', { tags }),
    await send('email', { tags, attachments: [file] }),
    await send('email', { tags, text: 'x'.repeat(300_000) }),
  ];
  const { body } = await server.request<{ data: { id: string }[] }>('POST', '/v1/email/send/batch', {
    emails: [anEmail({ tags }), anEmail({ tags, attachments: [file] }), anEmail()],
  });
  expect(await listed()).toEqual([body.data[1]!.id, body.data[0]!.id, ...ids.toReversed()]);
  const elsewhere = { ...anEmail({ tags }), from: 'hello@elsewhere.example' };
  for (const [path, refused] of [
    ['/v1/email/send', elsewhere],
    ['/v1/email/send/batch', { emails: [anEmail({ tags }), elsewhere] }],
  ] as const)
    expect((await server.request('POST', path, refused)).status).toBe(400);
  const kept = await rowsOf(
    server,
    `select from message_tags where organization_id = $1 and tag = 'in every way'`,
    [server.organizationId],
  );
  expect(kept).toHaveLength(5);
  const { body: again } = await server.request<{ id: string }>('POST', `/v1/email/${ids[0]!}/resend`, {});
  expect((await listed())[0]).toBe(again.id);
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
