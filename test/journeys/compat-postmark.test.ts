/** A program that uses Postmark's own SDK, unchanged, with another host. */
import { Errors, ServerClient } from 'postmark';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { toEmail } from '../../src/compat/postmark/emails.ts';
import { postmarkFields } from '../../src/compat/postmark/postmark.ts';
import { read, settled } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: { organizationId: string; key: string };
let client: ServerClient;

const open = (key: string) =>
  new ServerClient(key, { requestHost: `${new URL(server.url).host}/compat/postmark`, useHttps: false });

beforeAll(async () => {
  server = await startTestServer({ worker: true });
  other = await createSender(server.installation, 'elsewhere.example');
  client = open(server.key);
});
afterAll(() => server.stop());

const email = {
  From: 'Ada Lovelace <ada@postillion.test>',
  To: 'ann@example.com',
  Subject: 'Hello',
  HtmlBody: '<p>Hello <b>Ann</b></p>',
};

/** How the SDK refuses. */
async function refusal(
  asked: Promise<unknown>,
): Promise<{ code: number; statusCode: number; message: string }> {
  const error: unknown = await asked.then(
    () => null,
    (cause: unknown) => cause,
  );
  expect(error).toBeInstanceOf(Errors.PostmarkError);
  const { code, statusCode, message } = error as InstanceType<typeof Errors.PostmarkError>;
  return { code, statusCode, message };
}

test('sendEmail sends what the SDK takes', async () => {
  const sent = await client.sendEmail({
    ...email,
    To: '"Lee, Ann" <ann@example.com>, bob@example.com',
    Cc: 'cara@example.com',
    Bcc: 'dan@example.com',
    ReplyTo: 'desk@postillion.test',
    TextBody: 'Hello Ann',
    Tag: 'welcome',
    Metadata: { order: '42' },
    Headers: [{ Name: 'X-Order', Value: '42' }],
    MessageStream: 'outbound',
    Attachments: [
      {
        Name: 'a.txt',
        Content: Buffer.from('of text').toString('base64'),
        ContentType: 'text/plain',
        ContentID: 'cid:a',
      },
    ],
  });
  const record = await settled(server, sent.MessageID);
  expect(sent).toEqual({
    ErrorCode: 0,
    Message: 'OK',
    MessageID: record.id,
    SubmittedAt: expect.stringMatching(/^\d{4}-.*Z$/),
  });
  expect(Math.abs(Date.parse(sent.SubmittedAt) - Date.parse(record.created_at))).toBeLessThan(60_000);
  expect(record).toMatchObject({
    from: 'ada@postillion.test',
    from_name: 'Ada Lovelace',
    reply_to: 'desk@postillion.test',
    to: [{ email: 'ann@example.com' }, { email: 'bob@example.com' }],
    cc: [{ email: 'cara@example.com' }],
    bcc: [{ email: 'dan@example.com' }],
    tags: ['welcome'],
    metadata: { order: '42' },
    attachments: [{ filename: 'a.txt', size: 7, content_type: 'text/plain', content_id: 'a' }],
  });
  const { body } = await server.request('GET', `/v1/email/${record.id}/content`);
  expect(body).toMatchObject({
    to: ['"Lee, Ann" <ann@example.com>', 'bob@example.com'],
    html: email.HtmlBody,
    text: 'Hello Ann',
    headers: { 'X-Order': '42' },
  });
});

test('a sender without a name is shown by its address, and blanks are none', async () => {
  const { MessageID } = await client.sendEmail({ ...email, From: 'ada@postillion.test', Cc: '', Tag: '' });
  expect(await read(server, MessageID)).toMatchObject({ from_name: 'ada@postillion.test', cc: [], tags: [] });
});

test('a list of addresses is split at its commas alone, and one of a megabyte holds nobody up', async () => {
  const split = (To: unknown) => (toEmail({ To }) as { to: unknown }).to;
  expect(split(' a@example.com,"Lee, \\"Ann\\"" <b@example.com> , ,c@example.com,')).toEqual([
    'a@example.com',
    '"Lee, \\"Ann\\"" <b@example.com>',
    'c@example.com',
  ]);
  // A quotation that never ends, and may begin anywhere.
  const endless = '"\\'.repeat(500_000);
  expect(split(endless)).toEqual([endless]);
  await expect(client.sendEmail({ ...email, To: endless })).rejects.toMatchObject({ statusCode: 422 });
});

test('templates are filled, one by one and in a batch', async () => {
  const { body: template } = await server.request<{ id: string }>('POST', '/v1/templates', {
    name: 'Of the SDK',
    subject: 'Hello {{name}}',
    html: '<p>{{name}}</p>',
  });
  const message = (name: string) => ({
    From: email.From,
    To: email.To,
    TemplateAlias: template.id,
    TemplateModel: { name },
  });
  const one = await client.sendEmailWithTemplate(message('Ann'));
  const two = await client.sendEmailBatchWithTemplates([message('Bob'), message('Cara')]);
  const subjects = await Promise.all(
    [one, ...two].map(async ({ MessageID }) => (await read(server, MessageID)).subject),
  );
  expect(subjects).toEqual(['Hello Ann', 'Hello Bob', 'Hello Cara']);
});

test('a batch has a result for each, in their order', async () => {
  const results = await client.sendEmailBatch([
    email,
    { ...email, From: 'a@elsewhere.example' },
    { ...email, To: 'nobody' },
    { ...email, Subject: 'Last' },
  ]);
  expect(results.map(({ ErrorCode }) => ErrorCode)).toEqual([0, 300, 300, 0]);
  expect(results[1]!.Message).toMatch(/elsewhere\.example/);
  expect(await read(server, results[3]!.MessageID)).toMatchObject({ subject: 'Last' });
});

test('of many megabytes is the same', async () => {
  const Content = Buffer.alloc(600_000, 'x').toString('base64');
  const { MessageID } = await client.sendEmail({
    ...email,
    Attachments: [{ Name: 'large.txt', Content, ContentType: 'text/plain', ContentID: null }],
  });
  expect((await read(server, MessageID)).attachments).toMatchObject([
    { filename: 'large.txt', size: 600_000 },
  ]);
});

test('errors are those of the SDK', async () => {
  expect(await refusal(open('wrong').sendEmail(email))).toMatchObject({ code: 10, statusCode: 401 });
  expect(await refusal(client.sendEmail({ ...email, From: 'a@nobody.example' }))).toMatchObject({
    code: 300,
    statusCode: 422,
    message: expect.stringMatching(/nobody\.example/) as string,
  });
  expect(await refusal(client.sendEmail({ ...email, To: 'ann' }))).toMatchObject({
    code: 300,
    statusCode: 422,
  });
  expect(
    await refusal(
      client.sendEmailWithTemplate({ From: email.From, To: email.To, TemplateId: 7, TemplateModel: {} }),
    ),
  ).toMatchObject({ code: 1101, statusCode: 404 });
  expect(await refusal(client.getServer())).toMatchObject({
    statusCode: 404,
    message: 'GET /server is not understood here (getServer: keys are made by the operator).',
  });
  await updateOrganization(server.installation, other.organizationId, { quotas: { email: 0 } });
  const theirs = { ...email, From: 'a@elsewhere.example' };
  expect(await refusal(open(other.key).sendEmail(theirs))).toMatchObject({ code: 405, statusCode: 429 });
});

test('the token is the key, and no other header is', async () => {
  const ask = (headers: Record<string, string>) =>
    server.request('POST', '/compat/postmark/email', email, headers);
  expect((await ask({ authorization: '', 'x-postmark-server-token': server.key })).status).toBe(200);
  expect((await ask({ authorization: `Bearer ${server.key}` })).status).toBe(401);
});

test.each(postmarkFields.map(({ field, example }) => [field, example] as const))(
  'an email with what is said not to be understood is refused: %s',
  async (_field, example) => {
    const { HtmlBody: _html, ...rest } = email;
    const body = 'TemplateAlias' in example ? rest : email;
    const { status } = await server.request(
      'POST',
      '/compat/postmark/email',
      { ...body, ...example },
      {
        'x-postmark-server-token': server.key,
      },
    );
    expect(status).toBe(422);
  },
);

test.each([null, 7, 'text', [], [[]], { To: 7 }, { Headers: 'x' }, { Attachments: [7] }, { Messages: 7 }])(
  'a body of no form is refused and breaks nothing: %j',
  async (body) => {
    for (const path of ['email', 'email/batch', 'email/batchWithTemplates']) {
      const response = await server.request<{ ErrorCode: number }>(
        'POST',
        `/compat/postmark/${path}`,
        JSON.stringify(body),
        { 'x-postmark-server-token': server.key },
      );
      const isOfResults = response.status === 200;
      expect([path, isOfResults || response.body.ErrorCode === 300]).toEqual([path, true]);
      if (isOfResults) expect(response.body).toMatchObject([{ ErrorCode: 300 }]);
    }
  },
);
