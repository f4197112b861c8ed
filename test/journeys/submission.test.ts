import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { createTransport, type SendMailOptions } from 'nodemailer';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createApiKey } from '../../src/accounts/accounts.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

/** Emails by SMTP, from clients that programs really have. Everything is on loopback, where a key may be said in the clear. */

let server: TestServer;
let rival: { organizationId: string; key: string };

beforeAll(async () => {
  server = await startTestServer({
    submission: { host: '127.0.0.1', port: 0, tlsPort: null, certificate: null },
  });
  rival = await createSender(server.installation, 'rival.test');
});
afterAll(() => server.stop());

const port = () => server.submission!.port!;

async function sendBy(key: string, mail: SendMailOptions) {
  const transport = createTransport({ host: '127.0.0.1', port: port(), auth: { user: 'anyone', pass: key } });
  try {
    return await transport.sendMail(mail);
  } finally {
    transport.close();
  }
}

const send = (mail: SendMailOptions) => sendBy(server.key, mail);

const mail: SendMailOptions = {
  from: 'Acme <hello@postillion.test>',
  to: 'ada@example.com',
  subject: 'Hello',
  text: 'How are you?',
};

type Email = {
  id: string;
  from: string;
  from_name: string | null;
  reply_to: string | null;
  subject: string;
  category: string | null;
  metadata: Record<string, string>;
  tags: string[];
  to: { email: string }[];
  cc: { email: string }[];
  bcc: { email: string }[];
  attachments: { filename: string; content_type: string; size: number; content_id: string | null }[];
};

type Content = {
  to: string[];
  cc: string[];
  html: string | null;
  text: string | null;
  headers: Record<string, string>;
};

function idIn(response: string): string {
  const id = /^250 2\.0\.0 queued as ([0-9a-f-]{36})$/.exec(response)?.[1];
  if (id === undefined) throw new Error(`not queued: ${response}`);
  return id;
}

async function read(id: string): Promise<Email> {
  const { status, body } = await server.request<Email>('GET', `/v1/email/${id}`);
  expect(status).toBe(200);
  return body;
}

async function readContent(id: string): Promise<Content> {
  const { status, body } = await server.request<Content>('GET', `/v1/email/${id}/content`);
  expect(status).toBe(200);
  return body;
}

async function countEmails(): Promise<number> {
  const { body } = await server.request<{ data: unknown[] }>('GET', '/v1/email?limit=100');
  return body.data.length;
}

type Client = { socket: Socket; ask: (line: string) => Promise<string>; reply: () => Promise<string> };

/** Sends exactly what it is given. */
async function dial(): Promise<Client> {
  const socket = connect(port(), '127.0.0.1');
  let text = '';
  let wake: () => void = () => undefined;
  let isClosed = false;
  socket.setEncoding('latin1');
  socket.on('data', (chunk: string) => {
    text += chunk;
    wake();
  });
  socket.on('error', () => undefined);
  socket.on('close', () => {
    isClosed = true;
    wake();
  });
  const reply = async (): Promise<string> => {
    // Ends with a reply, or the connection.
    for (;;) {
      const found = /^(?:\d{3}-.*\r\n)*\d{3}(?: .*)?\r\n/.exec(text);
      if (found !== null) {
        text = text.slice(found[0].length);
        return found[0].trimEnd();
      }
      if (isClosed) return 'closed';
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  };
  const ask = (line: string) => {
    socket.write(`${line}\r\n`, 'latin1');
    return reply();
  };
  expect(await reply()).toMatch(/^220 /);
  return { socket, ask, reply };
}

function plain(key: string): string {
  return Buffer.from(`\0anyone\0${key}`).toString('base64');
}

async function enter(key = server.key): Promise<Client> {
  const client = await dial();
  await client.ask('EHLO client.test');
  expect(await client.ask(`AUTH PLAIN ${plain(key)}`)).toMatch(/^235 2\.7\.0/);
  return client;
}

/** The reply to the message, which is sent as it is. */
async function submit(
  message: string,
  { recipients = ['ada@example.com'], key = server.key }: { recipients?: string[]; key?: string } = {},
): Promise<string> {
  const client = await enter(key);
  expect(await client.ask('MAIL FROM:<bounces@elsewhere.test>')).toMatch(/^250/);
  for (const recipient of recipients) expect(await client.ask(`RCPT TO:<${recipient}>`)).toMatch(/^250/);
  expect(await client.ask('DATA')).toMatch(/^354/);
  client.socket.write(message, 'latin1');
  const answer = await client.ask('.');
  client.socket.destroy();
  return answer;
}

const head = 'From: Acme <hello@postillion.test>\r\nTo: ada@example.com\r\nSubject: Hello\r\n';

test('nodemailer sends an email, which is the same as by a request', async () => {
  const { response } = await send({
    ...mail,
    to: ['Ada <ada@example.com>', 'ben@example.com'],
    cc: 'Cleo <cleo@example.com>',
    bcc: 'dan@example.com',
    replyTo: 'Help <help@postillion.test>',
    html: '<p>How are <b>you</b>?</p>',
    headers: {
      'X-Order': '42',
      'X-Postillion-Category': 'receipts',
      'X-Postillion-Metadata': '{"order":"42"}',
      'X-Postillion-Tags': 'paid, first',
    },
  });
  const id = idIn(response);
  expect(await read(id)).toMatchObject({
    from: 'hello@postillion.test',
    from_name: 'Acme',
    reply_to: '"Help" <help@postillion.test>',
    subject: 'Hello',
    category: 'receipts',
    metadata: { order: '42' },
    tags: ['paid', 'first'],
    to: [{ email: 'ada@example.com' }, { email: 'ben@example.com' }],
    cc: [{ email: 'cleo@example.com' }],
    bcc: [{ email: 'dan@example.com' }],
  });
  const content = await readContent(id);
  expect(content).toMatchObject({
    to: ['"Ada" <ada@example.com>', 'ben@example.com'],
    html: '<p>How are <b>you</b>?</p>',
    text: 'How are you?',
    headers: { 'X-Order': '42' },
  });
});

test("Python's smtplib sends an email", async () => {
  const script = `
import smtplib, sys
from email.message import EmailMessage
m = EmailMessage()
m['From'] = 'Acme <hello@postillion.test>'
m['To'] = 'ada@example.com'
m['Subject'] = 'Grüße'
m.set_content('Schöne Grüße\\n.\\n..\\n')
m.add_attachment(bytes(range(256)), maintype='application', subtype='pdf', filename='Übersicht.pdf')
with smtplib.SMTP('127.0.0.1', int(sys.argv[1])) as s:
    s.login('anyone', sys.argv[2])
    print(s.send_message(m))
`;
  const child = spawn('python3', ['-c', script, String(port()), server.key], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  child.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (output += chunk.toString()));
  expect([await once(child, 'close'), output]).toEqual([[0, null], '{}\n']);
  const { body } = await server.request<{ data: Email[] }>(
    'GET',
    `/v1/email?search=${encodeURIComponent('Grüße')}`,
  );
  const [email] = body.data;
  expect(email).toMatchObject({
    subject: 'Grüße',
    attachments: [
      { filename: 'Übersicht.pdf', content_type: 'application/pdf', size: 256, content_id: null },
    ],
  });
  expect((await readContent(email!.id)).text).toBe('Schöne Grüße\n.\n..');
});

describe('a key', () => {
  test('opens by LOGIN as well as by PLAIN, with any user name', async () => {
    const client = await dial();
    await client.ask('EHLO client.test');
    expect(await client.ask('AUTH LOGIN')).toMatch(/^334/);
    expect(await client.ask(Buffer.from('whoever').toString('base64'))).toMatch(/^334/);
    expect(await client.ask(Buffer.from(server.key).toString('base64'))).toMatch(/^235/);
    client.socket.destroy();
  });

  test('that is wrong, or lacks the scope, is told so', async () => {
    const { key } = await createApiKey(server.installation, {
      organizationId: server.organizationId,
      name: 'Reader',
      scopes: ['email:read'],
      expiresAt: null,
    });
    const client = await dial();
    await client.ask('EHLO client.test');
    expect(await client.ask(`AUTH PLAIN ${plain('pst_wrong')}`)).toMatch(/^535 5\.7\.8 The API key is/);
    expect(await client.ask(`AUTH PLAIN ${plain(key)}`)).toBe(
      '535 5.7.1 The API key lacks the scope email:send.',
    );
    expect(await client.ask('MAIL FROM:<a@b.test>')).toMatch(/^530 5\.7\.0/);
    client.socket.destroy();
  });
});

describe('a refusal is the one of the API', () => {
  test.each([
    ['a domain that is not verified', { from: 'Acme <a@elsewhere.test>' }, /^554 5\.6\.0 .*elsewhere\.test/],
    ['a domain of another organization', { from: 'Acme <a@rival.test>' }, /^554 5\.6\.0 .*rival\.test/],
    [
      'an executable',
      { attachments: [{ filename: 'a.exe', content: 'MZ' }] },
      /^554 5\.6\.0 The attachment "a\.exe" is of a type/,
    ],
    ['no subject', { subject: '' }, /^554 5\.6\.0 subject is required/],
    [
      'two senders',
      { from: ['a@postillion.test', 'b@postillion.test'] as never },
      /^554 5\.6\.0 From must be one address/,
    ],
    [
      'an unknown option',
      { headers: { 'X-Postillion-Colour': 'red' } },
      /^554 5\.6\.0 There is no option X-Postillion-Colour/,
    ],
    [
      'a template that there is not',
      { headers: { 'X-Postillion-Template': 'none' } },
      /^554 5\.6\.0 template_id is not a template/,
    ],
  ])('%s', async (_name, change, sentence) => {
    const before = await countEmails();
    await expect(send({ ...mail, ...change })).rejects.toMatchObject({
      response: expect.stringMatching(sentence),
    });
    expect(await countEmails()).toBe(before);
  });
});

describe('the same message', () => {
  test('is sent once, and has one id', async () => {
    const message = { ...mail, messageId: '<once@client.test>' };
    const [first, second] = [await send(message), await send(message)];
    expect(idIn(second.response)).toBe(idIn(first.response));
  });

  test('to others is another one, as a mail server sends what has many recipients', async () => {
    const message = { ...mail, messageId: '<split@client.test>' };
    const ids = [];
    for (const to of ['ada@example.com', 'ben@example.com'])
      ids.push(idIn((await send({ ...message, envelope: { from: 'a@b.test', to } })).response));
    expect(new Set(ids).size).toBe(2);
  });

  test('of another organization is its own', async () => {
    const message = { ...mail, messageId: '<both@client.test>' };
    const own = idIn((await send(message)).response);
    const theirs = idIn((await sendBy(rival.key, { ...message, from: 'R <a@rival.test>' })).response);
    expect(theirs).not.toBe(own);
  });

  test('with another text is refused, and told of its Message-ID', async () => {
    const message = { ...mail, messageId: '<changed@client.test>' };
    await send(message);
    await expect(send({ ...message, text: 'Another' })).rejects.toMatchObject({
      response: expect.stringMatching(/^554 5\.6\.0 The Message-ID was used with a different message/),
    });
  });

  test('by the key of its option, which goes before the Message-ID', async () => {
    const by = (key: string) => ({
      ...mail,
      messageId: `<${key}.${Math.floor(performance.now() * 1e6)}@client.test>`,
      headers: { 'X-Postillion-Idempotency-Key': 'order-42' },
    });
    const [first, second] = [await send(by('a')), await send(by('b'))];
    expect(idIn(second.response)).toBe(idIn(first.response));
  });
});

describe('the log', () => {
  type Entry = {
    id: string;
    source: string;
    method: string;
    status: number;
    error_name: string | null;
    message: string | null;
  };
  const list = async (query: string) => {
    const { status, body } = await server.request<{ data: Entry[] }>('GET', `/v1/logs?${query}`);
    expect(status).toBe(200);
    return body.data;
  };

  test('has what was refused, with its sentence and nothing of what was in it, and what was accepted', async () => {
    const { response } = await send({ ...mail, subject: 'Of the log' });
    const refused = {
      ...mail,
      subject: 'canary-subject',
      text: 'canary-text',
      category: 'x',
      from: 'a@elsewhere.test',
    };
    await expect(send(refused)).rejects.toThrow('554');
    const entries = await list('source=smtp&method=DATA&limit=2');
    expect(entries).toMatchObject([
      {
        source: 'smtp',
        method: 'DATA',
        status: 554,
        error_name: 'bad_request',
        message: expect.stringContaining('elsewhere.test'),
        api_key: { name: 'Test key' },
        remote_address: '127.0.0.1',
      },
      { status: 250, resource_id: idIn(response), error_name: null },
    ]);
    const { text } = await server.request('GET', `/v1/logs/${entries[0]!.id}`);
    expect(text).toContain('[14 characters]');
    expect(text).not.toContain('canary');
    expect(text).not.toContain(server.key);
    expect((await list('source=api&limit=100')).filter(({ source }) => source !== 'api')).toEqual([]);
  });

  test('has keys that may not send, also for the organization alone whose they are', async () => {
    const { key } = await createApiKey(server.installation, {
      organizationId: server.organizationId,
      name: 'Reader of logs',
      scopes: ['logs:read'],
      expiresAt: null,
    });
    const client = await dial();
    await client.ask('EHLO client.test');
    await client.ask(`AUTH PLAIN ${plain(key)}`);
    client.socket.destroy();
    expect((await list('source=smtp&method=AUTH&limit=1'))[0]).toMatchObject({
      status: 535,
      error_name: 'forbidden',
      api_key: { name: 'Reader of logs' },
      user_agent: 'client.test',
    });
    const { body } = await server.request<{ data: Entry[] }>(
      'GET',
      '/v1/logs?source=smtp&method=AUTH',
      undefined,
      {
        authorization: `Bearer ${rival.key}`,
      },
    );
    expect(body.data).toEqual([]);
  });
});

test('whom the header does not name is not shown to anybody', async () => {
  const answer = await submit(`${head}\r\nHi\r\n`, { recipients: ['secret@example.com', 'ADA@Example.com'] });
  const email = await read(idIn(answer));
  expect(email.to).toMatchObject([{ email: 'ADA@Example.com' }]);
  expect(email.bcc).toMatchObject([{ email: 'secret@example.com' }]);
});

describe('one message in is one message', () => {
  const smuggled =
    'MAIL FROM:<a@b.test>\r\nRCPT TO:<x@example.com>\r\nDATA\r\nSubject: Smuggled\r\n\r\nx\r\n';
  test.each([
    ['\\n.\\n', `\n.\n${smuggled}`],
    ['\\n.\\r\\n', `\n.\r\n${smuggled}`],
    ['\\r\\n.\\n', `\r\n.\n${smuggled}`],
    ['\\r.\\r', `\r.\r${smuggled}`],
    ['\\r\\n.\\r', `\r\n.\r${smuggled}`],
    ['\\r.\\r\\n', `\r.\r\n${smuggled}`],
    ['\\r\\r\\n.\\r\\r\\n', `\r\r\n.\r\r\n${smuggled}`],
    ['\\n..\\n', `\n..\n${smuggled}`],
    ['\\0\\r\\n.\\r\\n', `\0\r\n`],
  ])('also with %s in it', async (_name, inside) => {
    const before = await countEmails();
    expect(await submit(`${head}\r\nHi${inside}`)).toMatch(/^554 5\.6\.0 The message must/);
    expect(await countEmails()).toBe(before);
  });

  test('a stuffed dot is one dot', async () => {
    const id = idIn(await submit(`${head}\r\n..\r\n...\r\n`));
    expect((await readContent(id)).text).toBe('.\n..');
  });
});

test('what comes in one piece is answered one by one, and what is cut off is not sent', async () => {
  const before = await countEmails();
  const message = `${head}Message-ID: <pipelined@client.test>\r\n\r\nHi\r\n.\r\n`;
  const client = await enter();
  client.socket.write(`MAIL FROM:<a@b.test>\r\nRCPT TO:<ada@example.com>\r\nDATA\r\n`);
  expect(
    [await client.reply(), await client.reply(), await client.reply()].map((line) => line.slice(0, 3)),
  ).toEqual(['250', '250', '354']);
  client.socket.write(
    `${message}MAIL FROM:<a@b.test>\r\nRCPT TO:<ada@example.com>\r\nDATA\r\n${message.slice(0, -2)}`,
  );
  const id = idIn(await client.reply());
  await client.reply();
  client.socket.end();
  expect((await read(id)).subject).toBe('Hello');
  expect(await countEmails()).toBe(before + 1);
});

test('the 51st recipient is told to come again, and the others get theirs', async () => {
  const client = await enter();
  await client.ask('MAIL FROM:<a@b.test>');
  for (let index = 0; index < 50; index += 1) {
    expect(await client.ask(`RCPT TO:<p${index}@example.com>`)).toMatch(/^250/);
  }
  expect(await client.ask('RCPT TO:<p50@example.com>')).toMatch(/^452 4\.5\.3 Too many recipients/);
  await client.ask('DATA');
  client.socket.write(`${head.replace('ada@', 'p0@')}\r\nHi\r\n`);
  const email = await read(idIn(await client.ask('.')));
  expect([email.to.length, email.bcc.length]).toEqual([1, 49]);
  client.socket.destroy();
});
