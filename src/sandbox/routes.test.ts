import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { startTestServer, type TestServer } from '../../test/support/server.ts';
import { unpreparedStatement } from '../platform/postgres/database.ts';
import { type KeptMessage, keepMessage, sandboxToken } from './sandbox.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});

afterAll(() => server.stop());

beforeEach(() => server.installation.database.rows(unpreparedStatement('truncate sandbox_messages')));

const mailOf = (subject: string, body = 'Hello') =>
  Buffer.from(`From: Shop <shop@postillion.test>\r\nSubject: ${subject}\r\nX-Tag: a\r\n\r\n${body}\r\n`);

async function keep(message: Partial<KeptMessage> = {}): Promise<string> {
  const messageId = server.installation.newId();
  await keepMessage(server.installation, {
    organizationId: server.organizationId,
    channel: 'email',
    messageId,
    ordinal: 0,
    recipient: 'ada@example.com',
    sender: 'bounce@postillion.test',
    outcome: 'delivered',
    source: mailOf('It works'),
    ...message,
  });
  return messageId;
}

type Shown = {
  id: string;
  message_id: string;
  subject: string | null;
  text: string | null;
  truncated: boolean;
};
type ShownList = { object: string; has_more: boolean; next: string | null; data: Shown[] };

const list = async (query = '') => (await server.request<ShownList>('GET', `/sandbox/messages${query}`)).body;
const messageIds = ({ data }: ShownList) => data.map(({ message_id }) => message_id);

/** `fetch` sets its own `Host`. */
async function getAs(host: string, path: string): Promise<{ status: number; body: string }> {
  const request = http.get(`${server.url}${path}`, { headers: { host } });
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  return { status: response.statusCode ?? 0, body: (await response.toArray()).join('') };
}

test('the list shows of a message who, what and what became of it', async () => {
  const messageId = await keep();
  const { status, headers, body } = await server.request<ShownList>('GET', '/sandbox/messages');
  expect(status).toBe(200);
  expect(headers.get('content-type')).toBe('application/json; charset=utf-8');
  expect(headers.get('x-content-type-options')).toBe('nosniff');
  expect(headers.get('access-control-allow-origin')).toBeNull();
  expect(body).toEqual({
    object: 'list',
    has_more: false,
    next: null,
    data: [
      {
        id: expect.any(String),
        organization_id: server.organizationId,
        message_id: messageId,
        channel: 'email',
        outcome: 'delivered',
        from: 'shop@postillion.test',
        to: 'ada@example.com',
        addresses: {
          from: [{ name: 'Shop', address: 'shop@postillion.test' }],
          to: [],
          cc: [],
          // It is in no header, so that nobody else saw it.
          bcc: [{ name: '', address: 'ada@example.com' }],
          reply_to: [],
        },
        return_path: 'bounce@postillion.test',
        created_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/),
        subject: 'It works',
        headers: [
          { name: 'From', value: 'Shop <shop@postillion.test>' },
          { name: 'Subject', value: 'It works' },
          { name: 'X-Tag', value: 'a' },
        ],
        html: null,
        text: 'Hello',
        attachments: [],
        truncated: false,
      },
    ],
  });
});

test('the newest comes first, and every message on exactly one page', async () => {
  const kept = [];
  for (let count = 0; count < 5; count += 1) kept.unshift(await keep());
  const first = await list('?limit=2');
  const second = await list(`?limit=2&after=${first.data[1]!.id}`);
  const third = await list(`?limit=2&after=${second.data[1]!.id}`);
  expect([first, second, third].map(({ has_more }) => has_more)).toEqual([true, true, false]);
  expect([first, second, third].flatMap(messageIds)).toEqual(kept);
});

test('a recipient is found whatever the case, and not by half of the address', async () => {
  const mixed = await keep({ recipient: 'Ada.Lovelace@Example.com' });
  await keep({ recipient: 'not.ada.lovelace@example.com' });
  expect(messageIds(await list('?to=ada.LOVELACE@example.com'))).toEqual([mixed]);
  expect((await list('?to=lovelace@example.com')).data).toEqual([]);
  expect((await list('?search=ADA.love')).data).toHaveLength(2);
  expect((await list('?search=%25')).data).toEqual([]);
});

test('only the channel that was asked for is listed, and what is no email is text', async () => {
  await keep();
  await keep({ channel: 'sms', recipient: '+15550100', sender: 'Shop', source: Buffer.from('Code 1234') });
  expect((await list('?channel=sms')).data).toMatchObject([
    {
      channel: 'sms',
      from: 'Shop',
      to: '+15550100',
      addresses: null,
      return_path: null,
      subject: null,
      text: 'Code 1234',
      headers: [],
    },
  ]);
});

test('who got a copy openly, and who blindly, is told from the headers', async () => {
  const source = Buffer.from(
    'From: Shop <shop@postillion.test>\r\nTo: Ada <ADA@example.com>, team: bob@example.com;\r\nCc: cy@example.com\r\nReply-To: help@postillion.test\r\n\r\nHello\r\n',
  );
  await keep({ source, recipient: 'dora@example.com' });
  await keep({ source });
  const { data } = await list();
  const openly = {
    to: [
      { name: 'Ada', address: 'ADA@example.com' },
      { name: '', address: 'bob@example.com' },
    ],
    cc: [{ name: '', address: 'cy@example.com' }],
    reply_to: [{ name: '', address: 'help@postillion.test' }],
  };
  expect(data).toMatchObject([
    { to: 'ada@example.com', addresses: { ...openly, bcc: [] } },
    { to: 'dora@example.com', addresses: { ...openly, bcc: [{ name: '', address: 'dora@example.com' }] } },
  ]);
});

test('a search looks into subjects and texts, however they are encoded, and past the first hundred', async () => {
  const text = Buffer.from('Dein Code für heute: 4711').toString('base64');
  const encoded = await keep({
    source: Buffer.from(
      `Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n${text}\r\n`,
    ),
  });
  const page = await keep({
    source: Buffer.from(
      'Subject: Page\r\nContent-Type: text/html\r\n\r\n<style>.hidden{}</style><p class="inside">Hello <b>W</b>orld</p>\r\n',
    ),
  });
  const code = await keep({
    channel: 'sms',
    recipient: '+15550100',
    source: Buffer.from('Your code is 1234'),
  });
  for (let count = 0; count < 220; count += 1) await keep({ source: mailOf(`Later ${count}`) });
  const find = async (query: string) => messageIds(await list(`?${query}`));
  expect(await find('search=GRÜSSE')).toEqual([]);
  expect(await find('search=GRÜße')).toEqual([encoded]);
  expect(await find('search=für heute: 4711')).toEqual([encoded]);
  expect(await find('search=hello world')).toEqual([page]);
  expect(await find('search=inside')).toEqual([]);
  expect(await find('search=hidden')).toEqual([]);
  expect(await find('search=code')).toEqual([code, encoded]);
  expect(await find('search=code&channel=email')).toEqual([encoded]);
  expect(await find('search=%2B1555')).toEqual([code]);

  const first = await list('?search=later&limit=100');
  const second = await list(`?search=later&limit=100&after=${first.data[99]!.id}`);
  const third = await list(`?search=later&limit=100&after=${second.data[99]!.id}`);
  expect([first, second, third].map(({ data, has_more }) => [data.length, has_more])).toEqual([
    [100, true],
    [100, true],
    [20, false],
  ]);
});

test('a search looks through a few megabytes at a time, and misses nothing on its pages', async () => {
  const bulk = (words: string) =>
    Buffer.from(`Subject: Bulk\r\n\r\n${words}\r\n${`${'Hay '.repeat(240)}\r\n`.repeat(1_000)}`);
  const kept = [await keep({ source: mailOf('A small one with a needle') })];
  for (let count = 0; count < 11; count += 1)
    kept.unshift(await keep({ source: bulk(count % 5 === 0 ? 'A needle' : 'Hay') }));
  const matching = kept.filter((_, at) => at === 11 || (10 - at) % 5 === 0);
  const pages = [];
  let next: string | null = '';
  while (next !== null) {
    const page: ShownList = await list(`?search=NEEDLE&limit=100${next === '' ? '' : `&after=${next}`}`);
    expect(page.has_more).toBe(page.next !== null);
    pages.push(messageIds(page));
    next = page.next;
  }
  expect(pages.flat()).toEqual(matching);
  // Five of a megabyte each, and what is left.
  expect(pages).toHaveLength(3);
  const one = await list('?search=needle&limit=1');
  expect([messageIds(one), one.has_more]).toEqual([matching.slice(0, 1), true]);
  expect(messageIds(await list(`?search=needle&limit=1&after=${one.next}`))).toEqual(matching.slice(1, 2));
  // One that is more than a list may hold is looked at as a whole, too.
  const { body } = await server.request('DELETE', '/sandbox/messages?search=needle');
  expect(body).toEqual({ deleted: matching.length });
});

test('one message is deleted by its id, and others by the filters of the list', async () => {
  const other = await keep({ organizationId: randomUUID(), recipient: 'bob@example.com' });
  await keep({ recipient: 'ADA@example.com', source: mailOf('Reset your password') });
  await keep({ channel: 'sms', recipient: '+15550100', source: Buffer.from('Code 1234') });
  const one = await keep({ recipient: 'ada@example.com', source: mailOf('Welcome') });
  const remove = async (query: string) => (await server.request('DELETE', `/sandbox/messages${query}`)).body;

  const { id } = (await list('?search=welcome')).data[0]!;
  expect(await remove(`/${id}`)).toEqual({ id, deleted: true });
  expect(await remove(`/${id}`)).toMatchObject({ name: 'not_found' });
  expect(messageIds(await list())).not.toContain(one);

  expect(await remove('?to=ada@example.com&search=invoice')).toEqual({ deleted: 0 });
  expect(await remove('?to=ada@example.com&search=PASSWORD')).toEqual({ deleted: 1 });
  expect(await remove('?channel=sms')).toEqual({ deleted: 1 });
  expect(messageIds(await list())).toEqual([other]);
  expect(await remove('')).toEqual({ deleted: 1 });
  expect((await list()).data).toEqual([]);
});

test.each([
  'recipient=ada@example.com',
  'To=ada@example.com',
  'to=ada@example.com&to=bob@example.com',
  'channel=email&subject=x',
  'channel=fax',
  '__proto__=x',
])('?%s deletes nothing, and lists nothing', async (query) => {
  await keep();
  for (const method of ['GET', 'DELETE']) {
    const { status, body } = await server.request(method, `/sandbox/messages?${query}`);
    expect([status, (body as { name: string }).name]).toEqual([422, 'validation_error']);
  }
  expect((await list()).data).toHaveLength(1);
});

test.each(['to=', 'search=', 'channel=', 'to=%20', 'search=%09%20', 'channel=email&to=', 'to'])(
  'DELETE ?%s deletes nothing, since a filter without a value is a mistake',
  async (query) => {
    await keep();
    const { status, body } = await server.request('DELETE', `/sandbox/messages?${query}`);
    expect([status, (body as { name: string }).name]).toEqual([422, 'validation_error']);
    expect((await list()).data).toHaveLength(1);
  },
);

test('pages do not apply to what is deleted', async () => {
  await keep();
  expect((await server.request('DELETE', '/sandbox/messages?limit=1')).status).toBe(422);
  expect((await list()).data).toHaveLength(1);
});

test.each([
  { 'sec-fetch-site': 'cross-site', origin: 'https://evil.example' },
  { 'sec-fetch-site': 'same-site' },
  { origin: 'https://evil.example' },
  { origin: 'http://127.0.0.1:1' },
  { origin: 'null' },
])('a page from elsewhere deletes nothing: %o', async (headers) => {
  await keep();
  const { id } = (await list()).data[0]!;
  for (const path of ['', `/${id}`]) {
    const { status } = await server.request('DELETE', `/sandbox/messages${path}`, undefined, headers);
    expect(status).toBe(403);
  }
  expect((await list()).data).toHaveLength(1);
  const own = { 'sec-fetch-site': 'same-origin', origin: server.url };
  expect((await server.request('DELETE', `/sandbox/messages/${id}`, undefined, own)).status).toBe(200);
});

test('an attachment is shown if nothing in it can run, and saved if not', async () => {
  const part = (type: string, name: string, body: string) =>
    `--b\r\nContent-Type: ${type}\r\nContent-Disposition: attachment; filename="${name}"\r\n\r\n${body}\r\n`;
  await keep({
    source: Buffer.from(
      'Content-Type: multipart/mixed; boundary=b\r\n\r\n' +
        part('text/html', 'page.html', '<script>alert(1)</script>') +
        part('image/svg+xml', 'logo.svg', '<svg onload="alert(1)"/>') +
        part('application/pdf', '../../"evil".pdf', '%PDF') +
        part('IMAGE/PNG', '=?utf-8?q?Gr=C3=BC=C3=9Fe.png?=', 'png') +
        '--b--\r\n',
    ),
  });
  const { id } = (await list()).data[0]!;
  const get = async (path: string) => {
    const { status, headers, text } = await server.request(
      'GET',
      `/sandbox/messages/${id}/attachments/${path}`,
    );
    return {
      status,
      type: headers.get('content-type'),
      disposition: headers.get('content-disposition'),
      headers,
      text,
    };
  };
  expect(await get('0')).toMatchObject({
    type: 'text/plain; charset=utf-8',
    disposition: `inline; filename="page.html"; filename*=UTF-8''page.html`,
    // The parser ends text with a line feed; what Postillion sends is in Base64, and comes out as it was.
    text: '<script>alert(1)</script>\n',
  });
  for (const [index, name] of [
    ['1', 'logo.svg'],
    ['0?download=1', 'page.html'],
  ]) {
    expect(await get(index!)).toMatchObject({
      type: 'application/octet-stream',
      disposition: `attachment; filename="${name}"; filename*=UTF-8''${name}`,
    });
  }
  expect((await get('2')).disposition).toMatch(
    /^attachment; filename="[^"/\\]*"; filename\*=UTF-8''[\w.%-]*$/,
  );
  const picture = await get('3');
  expect(picture).toMatchObject({
    type: 'image/png',
    disposition: `inline; filename="Gr__e.png"; filename*=UTF-8''Gr%C3%BC%C3%9Fe.png`,
  });
  expect(picture.headers.get('x-content-type-options')).toBe('nosniff');
  expect(picture.headers.get('content-security-policy')).toMatch(/^default-src 'none';.*; sandbox$/);
  for (const index of ['4', '-1', '00001', 'x']) expect((await get(index)).status).toBe(404);
});

test('of a large message the list has the headers, and its own page everything', async () => {
  const body = 'a line of text\r\n'.repeat(140_000);
  await keep({ source: mailOf('Large', body) });
  await keep({ source: mailOf('Small') });
  const { data } = await list();
  expect(data).toMatchObject([
    { subject: 'Small', text: 'Hello', truncated: false },
    { subject: 'Large', from: 'shop@postillion.test', text: null, html: null, truncated: true },
  ]);
  const one = await server.request<Shown>('GET', `/sandbox/messages/${data[1]!.id}`);
  expect(one.body).toMatchObject({ subject: 'Large', truncated: false });
  expect(one.body.text!.length).toBeGreaterThan(2_000_000);
});

test('a list of many middling messages stops parsing at eight megabytes', async () => {
  const source = mailOf('Middling', `${'x'.repeat(76)}\r\n`.repeat(13_000));
  for (let count = 0; count < 10; count += 1) await keep({ source });
  const { data } = await list();
  expect(data.map(({ truncated }) => truncated)).toEqual([...Array<boolean>(8).fill(false), true, true]);
  expect(data.every(({ subject }) => subject === 'Middling')).toBe(true);
});

test.each([
  ['?limit=0', 'limit'],
  ['?limit=101', 'limit'],
  ['?limit=ten', 'limit'],
  ['?channel=fax', 'channel'],
  ['?after=yesterday', 'after'],
  [`?to=${'a'.repeat(5_000)}`, 'to'],
  ['?to=%00', 'to'],
])('%s is refused with a sentence that says why', async (query, name) => {
  const { status, body } = await server.request('GET', `/sandbox/messages${query}`);
  expect(status).toBe(422);
  expect(body).toMatchObject({ status_code: 422, name: 'validation_error' });
  expect((body as { message: string }).message).toMatch(new RegExp(`^${name} must be `));
});

test('the source is the message, octet by octet', async () => {
  const source = Buffer.concat([mailOf('Bytes'), Buffer.from([0, 255, 254, 13, 10])]);
  await keep({ source });
  const { id } = (await list()).data[0]!;
  const shown = await fetch(`${server.url}/sandbox/messages/${id}/source`);
  expect(shown.headers.get('content-type')).toBe('text/plain; charset=utf-8');
  expect(Buffer.from(await shown.arrayBuffer()).equals(source)).toBe(true);
  const download = await fetch(`${server.url}/sandbox/messages/${id}/source?download=1`);
  expect(download.headers.get('content-type')).toBe('message/rfc822');
  expect(download.headers.get('content-disposition')).toBe(`attachment; filename="${id}.eml"`);
  expect(Buffer.from(await download.arrayBuffer()).equals(source)).toBe(true);
});

test('the HTML of a message is served with everything forbidden', async () => {
  await keep({ source: Buffer.from('Content-Type: text/html\r\n\r\n<p>Hi</p>\r\n') });
  const { id } = (await list()).data[0]!;
  const { headers, text } = await server.request('GET', `/sandbox/messages/${id}/html`);
  expect(headers.get('content-type')).toBe('text/html; charset=utf-8');
  expect(headers.get('content-security-policy')).toMatch(
    /^default-src 'none'; style-src 'unsafe-inline'; img-src data:; .*; sandbox allow-popups allow-popups-to-escape-sandbox$/,
  );
  expect(text).toContain('<p>Hi</p>');
});

test.each(['', '/html', '/source'])('an unknown message is not found at …%s', async (suffix) => {
  for (const id of [randomUUID(), 'nonsense', "'; drop table sandbox_messages"]) {
    const { status, body } = await server.request(
      'GET',
      `/sandbox/messages/${encodeURIComponent(id)}${suffix}`,
    );
    expect(status).toBe(404);
    expect(body).toMatchObject({ name: 'not_found' });
  }
});

test.each(['/sandbox', '/sandbox/page.css', '/sandbox/page.js'])(
  '%s is served under a strict policy',
  async (path) => {
    const { status, headers } = await server.request('GET', path);
    expect(status).toBe(200);
    expect(headers.get('content-security-policy')).toBe(
      "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    );
    expect(headers.get('x-content-type-options')).toBe('nosniff');
    expect(headers.get('referrer-policy')).toBe('no-referrer');
  },
);

test('to a rebound name the sandbox looks as if it did not exist', async () => {
  await keep();
  const { id } = (await list()).data[0]!;
  const unknown = await getAs('evil.example', '/no-such-route');
  expect(unknown.status).toBe(404);
  for (const path of [
    '',
    '/page.js',
    '/messages',
    `/messages/${id}`,
    `/messages/${id}/source`,
    '/messages?limit=0',
  ]) {
    expect(await getAs('evil.example', `/sandbox${path}`)).toEqual(unknown);
  }
  const { port } = new URL(server.url);
  for (const host of [`localhost:${port}`, `[::1]:${port}`]) {
    expect((await getAs(host, '/sandbox/messages')).status).toBe(200);
  }
});

test('behind a public URL the sandbox opens with the token of the link, which a cookie then keeps', async () => {
  const guarded = await startTestServer({
    sandboxAccess: 'token',
    publicUrl: 'https://mail.example.com/post',
  });
  const ask = (path: string, headers = {}) => fetch(`${guarded.url}${path}`, { headers });
  try {
    expect((await ask('/sandbox')).status).toBe(404);
    expect((await ask('/sandbox?token=nonsense')).status).toBe(404);
    expect((await ask('/sandbox/messages')).status).toBe(404);

    const token = sandboxToken(guarded.installation.secrets);
    const opened = await ask(`/sandbox?token=${token}`);
    expect(opened.status).toBe(200);
    const cookie = opened.headers.get('set-cookie') ?? '';
    expect(cookie).toMatch(/; Path=\/post\/; HttpOnly; SameSite=Strict; Secure$/);
    const [pair = ''] = cookie.split(';');
    for (const path of ['/sandbox', '/sandbox/page.js', '/sandbox/messages']) {
      expect((await ask(path, { cookie: pair })).status).toBe(200);
      expect((await ask(path, { authorization: `Bearer ${token}` })).status).toBe(200);
    }
    // Set by the link alone.
    expect((await ask('/sandbox', { cookie: pair })).headers.get('set-cookie')).toBeNull();
  } finally {
    await guarded.stop();
  }
});

test('a public sandbox answers under any name', async () => {
  const open = await startTestServer({ sandboxAccess: 'any' });
  try {
    const request = http.get(`${open.url}/sandbox`, { headers: { host: 'anything.example' } });
    const [response] = (await once(request, 'response')) as [http.IncomingMessage];
    expect(response.statusCode).toBe(200);
    response.resume();
    await once(response, 'end');
  } finally {
    await open.stop();
  }
});

test('where all messages leave, there is no sandbox, and where pushes stay, it has their page', async () => {
  const real = { smtpUrl: 'smtp://127.0.0.1:1', smsProvider: 'smpp', chatAppProvider: 'whatsapp' } as const;
  const leaving = await startTestServer({ ...real, pushProvider: 'direct' });
  const staying = await startTestServer(real);
  try {
    for (const path of ['/sandbox', '/sandbox/messages', '/sandbox/push']) {
      expect([path, (await leaving.request('GET', path)).status]).toEqual([path, 404]);
      expect([path, (await staying.request('GET', path)).status]).toEqual([path, 200]);
    }
  } finally {
    await leaving.stop();
    await staying.stop();
  }
});
