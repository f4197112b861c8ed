/** A program that uses Resend's own SDK, unchanged, with another base address. */
import { Resend } from 'resend';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createApiKey } from '../../src/accounts/accounts.ts';
import { resendFields } from '../../src/compat/resend/resend.ts';
import { authorize, eventually, read, rowsOf, settled } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: { organizationId: string; key: string };
let resend: Resend;

const open = (key: string) => new Resend(key, { baseUrl: `${server.url}/compat/resend` });

beforeAll(async () => {
  server = await startTestServer({ worker: true });
  other = await createSender(server.installation, 'elsewhere.example');
  resend = open(server.key);
});
afterAll(() => server.stop());

const email = {
  from: 'Ada Lovelace <ada@postillion.test>',
  to: 'ann@example.com',
  subject: 'Hello',
  html: '<p>Hello <b>Ann</b></p>',
};

/** What the SDK gives of a request that is carried out. */
async function done<Data>(asked: Promise<{ data: Data | null; error: unknown }>): Promise<Data> {
  const { data, error } = await asked;
  expect(error).toBeNull();
  if (data === null) throw new Error('the SDK gave neither data nor an error');
  return data;
}

describe('emails.send', () => {
  test('sends what the SDK takes, and emails.get shows it', async () => {
    const { id } = await done(
      resend.emails.send({
        ...email,
        to: ['Ann <ann@example.com>', 'bob@example.com'],
        cc: 'cara@example.com',
        bcc: ['dan@example.com'],
        replyTo: 'desk@postillion.test',
        text: 'Hello Ann',
        headers: { 'X-Order': '42' },
        tags: [{ name: 'category', value: 'welcome' }],
        attachments: [
          { filename: 'a.txt', content: Buffer.from('of bytes') },
          {
            filename: 'b.txt',
            content: Buffer.from('of text').toString('base64'),
            contentType: 'text/plain',
            contentId: 'b',
          },
        ],
      }),
    );
    const record = await settled(server, id);
    expect(record).toMatchObject({
      from: 'ada@postillion.test',
      from_name: 'Ada Lovelace',
      reply_to: 'desk@postillion.test',
      metadata: { category: 'welcome' },
      attachments: [
        { filename: 'a.txt', size: 8 },
        { filename: 'b.txt', size: 7, content_type: 'text/plain', content_id: 'b' },
      ],
    });
    const { body: content } = await server.request('GET', `/v1/email/${id}/content`);
    expect(content).toMatchObject({ html: email.html, text: 'Hello Ann', headers: { 'X-Order': '42' } });
    const [copy] = await rowsOf<{ source: Buffer }>(
      server,
      `select source from sandbox_messages where message_id = $1 limit 1`,
      [id],
    );
    const shown = await done(resend.emails.get(id));
    expect(shown).toEqual({
      object: 'email',
      id,
      message_id: /^Message-ID: (.*?)\r?$/im.exec(copy!.source.toString())![1],
      from: 'Ada Lovelace <ada@postillion.test>',
      to: ['ann@example.com', 'bob@example.com'],
      cc: ['cara@example.com'],
      bcc: ['dan@example.com'],
      reply_to: ['desk@postillion.test'],
      subject: 'Hello',
      html: email.html,
      text: 'Hello Ann',
      created_at: record.created_at,
      scheduled_at: null,
      last_event: 'delivered',
      tags: [{ name: 'category', value: 'welcome' }],
      topic_id: null,
    });
  });

  test('takes a sender without a name, and is sent once for its key', async () => {
    const send = (to: string) =>
      resend.emails.send({ ...email, from: 'ada@postillion.test', to }, { idempotencyKey: 'welcome/1' });
    const { id } = await done(send('ann@example.com'));
    expect(await done(send('ann@example.com'))).toEqual({ id });
    expect(await read(server, id)).toMatchObject({ from_name: 'ada@postillion.test' });
    const { error } = await send('bob@example.com');
    expect(error).toMatchObject({ statusCode: 409, name: 'invalid_idempotent_request' });
    // The same key means something else to the API itself.
    const { status } = await server.request(
      'POST',
      '/v1/email/send',
      {
        from: 'ada@postillion.test',
        from_name: 'Ada',
        to: 'ann@example.com',
        subject: 'Hello',
        text: 'Hello',
      },
      { 'idempotency-key': 'welcome/1' },
    );
    expect(status).toBe(202);
  });

  test('fills templates', async () => {
    const { body: template } = await server.request<{ id: string }>('POST', '/v1/templates', {
      name: 'Of the SDK',
      subject: 'Hello {{name}}',
      html: '<p>{{name}}</p>',
    });
    const { id } = await done(
      resend.emails.send({
        from: email.from,
        to: email.to,
        template: { id: template.id, variables: { name: 'Ann' } },
      }),
    );
    expect(await done(resend.emails.get(id))).toMatchObject({ subject: 'Hello Ann', html: '<p>Ann</p>' });
  });

  test('of many megabytes is the same', async () => {
    const file = Buffer.alloc(600_000, 'x');
    const { id } = await done(
      resend.emails.send(
        { ...email, attachments: [{ filename: 'large.txt', content: file }] },
        { idempotencyKey: 'large' },
      ),
    );
    expect((await read(server, id)).attachments).toMatchObject([{ filename: 'large.txt', size: 600_000 }]);
    const text = 'ä\n'.repeat(200_000);
    const { id: long } = await done(resend.emails.send({ ...email, text }));
    expect((await done(resend.emails.get(long))).text).toBe(text);
  });

  test.each<[string, Record<string, unknown>, number, string, RegExp]>([
    ['a domain of nobody', { from: 'a@nobody.example' }, 400, 'validation_error', /nobody\.example/],
    [
      'a domain of somebody else',
      { from: 'a@elsewhere.example' },
      400,
      'validation_error',
      /elsewhere\.example/,
    ],
    ['no address', { to: 'ann' }, 422, 'validation_error', /to\[0\]|^to /],
    ['no content', { html: undefined }, 422, 'validation_error', /html, text or template_id/],
    [
      'two addresses for replies',
      { replyTo: ['a@example.com', 'b@example.com'] },
      422,
      'validation_error',
      /reply_to/,
    ],
    [
      'a file at a URL',
      { attachments: [{ path: 'https://example.com/a' }] },
      422,
      'validation_error',
      /attachments\[0\]/,
    ],
    [
      'a program',
      { attachments: [{ filename: 'a.exe', content: 'TVo=' }] },
      400,
      'invalid_attachment',
      /a\.exe/,
    ],
    ['a topic', { topicId: 'x' }, 422, 'validation_error', /topic_id/],
    ['tags of no form', { tags: [{ value: 'x' }] }, 422, 'validation_error', /metadata/],
    ['an unknown template', { html: undefined, template: { id: 'none' } }, 404, 'not_found', /template/],
  ])('is refused with %s, in the form of the SDK', async (_case, more, statusCode, name, message) => {
    const { data, error } = await resend.emails.send({ ...email, ...more });
    expect(data).toBeNull();
    expect(error).toEqual({ statusCode, name, message: expect.stringMatching(message) });
  });

  test.each([
    null,
    7,
    'text',
    [],
    [[]],
    { to: [null] },
    { tags: 'x' },
    { attachments: [7] },
    { template: [] },
  ])('a body of no form is refused and breaks nothing: %j', async (body) => {
    const response = await server.request<{ statusCode: number }>(
      'POST',
      '/compat/resend/emails',
      JSON.stringify(body),
    );
    expect([response.status, response.body.statusCode]).toEqual([422, 422]);
    const batch = await server.request('POST', '/compat/resend/emails/batch', JSON.stringify(body));
    expect(batch.status).toBe(422);
  });
});

test.each(resendFields.map(({ field, example }) => [field, example] as const))(
  'an email with what is said not to be understood is refused: %s',
  async (_field, example) => {
    const response = await server.request('POST', '/compat/resend/emails', { ...email, ...example });
    expect([400, 422]).toContain(response.status);
  },
);

describe('batch.send', () => {
  test('sends all or none, and with permissive validation those that are right', async () => {
    const good = { ...email, to: 'in-batch@example.com' };
    const bad = { ...good, from: 'a@nobody.example' };
    const sent = await done(resend.batch.send([good, { ...good, subject: 'Second' }]));
    expect(sent.data).toHaveLength(2);
    expect(await read(server, sent.data[1]!.id)).toMatchObject({ subject: 'Second' });
    const { error } = await resend.batch.send([good, bad]);
    expect(error).toMatchObject({
      statusCode: 400,
      message: expect.stringMatching(/^emails\[1\]: .*nobody/) as string,
    });
    const some = await done(resend.batch.send([bad, good], { batchValidation: 'permissive' }));
    expect(some.data).toHaveLength(1);
    expect(some.errors).toEqual([{ index: 0, message: expect.stringMatching(/nobody/) }]);
  });
});

describe('emails.list', () => {
  test('lists what was sent, page by page, and nothing of others', async () => {
    const { key } = await createSender(server.installation, 'lists.example');
    const sdk = open(key);
    const ids: string[] = [];
    for (const subject of ['1', '2', '3'])
      ids.unshift((await done(sdk.emails.send({ ...email, from: 'a@lists.example', subject }))).id);
    const first = await done(sdk.emails.list({ limit: 2 }));
    expect([first.object, first.has_more, first.data.map(({ id }) => id)]).toEqual([
      'list',
      true,
      ids.slice(0, 2),
    ]);
    const second = await done(sdk.emails.list({ limit: 2, after: ids[1]! }));
    expect([second.has_more, second.data.map(({ id }) => id)]).toEqual([false, ids.slice(2)]);
    expect(second.data[0]).not.toHaveProperty('html');
    expect((await done(open(other.key).emails.list())).data).toEqual([]);
    const { error } = await open(other.key).emails.get(ids[0]!);
    expect(error).toMatchObject({ statusCode: 404, name: 'not_found' });
  });

  test('shows what happened last', async () => {
    const lastEvent = async (to: string) => {
      const { id } = await done(resend.emails.send({ ...email, to }));
      await settled(server, id);
      return eventually(
        async () => (await done(resend.emails.get(id))).last_event,
        (event) => event !== 'sent' && event !== 'queued',
      );
    };
    expect(await lastEvent('bounced@simulator.postillion.test')).toBe('bounced');
    expect(await lastEvent('suppressed@simulator.postillion.test')).toBe('suppressed');
  });
});

test('keys are those of the API, and have its scopes and limits', async () => {
  const { error } = await open('pst_wrong').emails.send(email);
  expect(error).toMatchObject({ statusCode: 401, name: 'invalid_api_key' });
  const { key } = await createApiKey(server.installation, {
    organizationId: server.organizationId,
    name: 'Reader',
    scopes: ['email:read'],
    expiresAt: null,
  });
  const { error: refused, headers } = await open(key).emails.send(email);
  expect(refused).toEqual({
    statusCode: 403,
    name: 'restricted_api_key',
    message: 'The API key lacks the scope email:send.',
  });
  expect(headers).toMatchObject({ 'ratelimit-limit': expect.any(String) });
  expect((await open(key).emails.list()).error).toBeNull();
});

test('what is not understood is refused in the form of the SDK, with what there is instead', async () => {
  const { error } = await resend.domains.list();
  expect(error).toEqual({
    statusCode: 404,
    name: 'not_found',
    message: 'GET /domains is not understood here (domains: /v1/email/domains).',
  });
  const { error: shared } = await resend.emails.share('x');
  expect(shared).toMatchObject({
    name: 'not_found',
    message: expect.stringMatching(/emails\.share/) as string,
  });
  const nowhere = await server.request<{ name: string }>('PUT', '/compat/resend/emails', {});
  expect([nowhere.status, nowhere.body.name]).toEqual([404, 'not_found']);
});

test('the log of requests has what was asked, by its own path', async () => {
  await resend.emails.send({ ...email, to: 'not an address', html: 'secret-of-the-body' });
  const { body } = await eventually(
    () =>
      server.request<{ data: { route: string; path: string; status: number; request_body: unknown }[] }>(
        'GET',
        '/v1/logs?status=422',
        undefined,
        authorize(undefined),
      ),
    ({ body: { data } }) => data.some(({ route }) => route === '/compat/resend/emails'),
  );
  const logged = body.data.find(({ route }) => route === '/compat/resend/emails');
  expect(JSON.stringify(logged)).not.toContain('secret-of-the-body');
});
