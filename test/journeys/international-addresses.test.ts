/**
 * Addresses beyond ASCII, from the API to servers that others wrote: one that offers SMTPUTF8, and one that does not.
 * Beside it another organization, which knows the same people and has suppressed them.
 */
import { Readable } from 'node:stream';
import { createTransport } from 'nodemailer';
import PostalMime from 'postal-mime';
import { SMTPServer, type SMTPServerOptions } from 'smtp-server';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { addSuppressions, importContacts } from '../../src/audience/audience.ts';
import { insertSentCampaign, queueCampaign } from '../support/campaign-fixture.ts';
import {
  anEmail,
  authorize,
  eventually,
  post,
  queueOf,
  read,
  rowsOf,
  send,
  settled,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { startSmtpSink } from '../support/smtp-sink.ts';

type Received = { from: string; to: string; isUtf8: boolean; bodyType: string | undefined; source: Buffer };

type Relay = { port: number; received: Received[]; close: () => Promise<void> };

async function startRelay(options: SMTPServerOptions): Promise<Relay> {
  const received: Received[] = [];
  const server = new SMTPServer({
    disabledCommands: ['STARTTLS', 'AUTH'],
    disableReverseLookup: true,
    logger: false,
    onData: (stream, { envelope }, callback) => {
      const chunks: Buffer[] = [];
      stream.on('data', (chunk: Buffer) => chunks.push(chunk));
      stream.on('end', () => {
        const { mailFrom, rcptTo, smtpUtf8, bodyType } = envelope;
        received.push({
          from: mailFrom === false ? '' : mailFrom.address,
          to: rcptTo[0]!.address,
          isUtf8: smtpUtf8 === true,
          bodyType,
          source: Buffer.concat(chunks),
        });
        callback(null, `queued as N${received.length}`);
      });
    },
    ...options,
  });
  const port = await new Promise<number>((resolve) => {
    const listener = server.listen(0, '127.0.0.1', () => {
      resolve((listener.address() as { port: number }).port);
    });
  });
  return { port, received, close: () => new Promise((resolve) => server.close(() => resolve())) };
}

let modern: Relay;
let old: Relay;
let server: TestServer;
/** Relays to the old one. */
let behind: TestServer;
let other: { organizationId: string; key: string };
let bouncePort: number;

beforeAll(async () => {
  modern = await startRelay({});
  old = await startRelay({ hideSMTPUTF8: true });
  // A free port for the listener, which has to be known before it starts.
  const placeholder = await startSmtpSink();
  bouncePort = placeholder.port;
  await placeholder.close();
  server = await startTestServer({
    worker: true,
    smtpUrl: `smtp://127.0.0.1:${modern.port}?connections=1&tls=off`,
    bounceHost: 'bounces.host.example',
    bounceListener: { host: '127.0.0.1', port: bouncePort },
  });
  behind = await startTestServer({
    worker: true,
    smtpUrl: `smtp://127.0.0.1:${old.port}?connections=1&tls=off`,
  });
  other = await createSender(server.installation, 'other.example');
});
afterAll(async () => {
  await Promise.all([server.stop(), behind.stop()]);
  await Promise.all([modern.close(), old.close()]);
});

const suppress = (organizationId: string, address: string) =>
  addSuppressions(server.installation.database, server.installation, 'email', [
    { organizationId, address, reason: 'operator' },
  ]);

/** As this server shows them, with domains in letters. */
const copiesTo = (relay: Relay, to: string) => relay.received.filter((copy) => copy.to === to);

test('a message reaches people with and without such addresses, each in the way that their server can read', async () => {
  await suppress(other.organizationId, 'jürgen@example.com');
  const id = await send(server, {
    to: ['ju\u0308rgen@Example.com', 'ann@example.com'],
    cc: ['用户@例子.公司', 'JÜRGEN@example.com'],
    bcc: ['юрий@example.com'],
  });
  const record = await settled(server, id);
  expect(record.to).toMatchObject([
    { email: 'jürgen@Example.com', status: 'delivered', bounce: null },
    { email: 'ann@example.com', status: 'delivered' },
  ]);
  expect(record.cc).toMatchObject([
    { email: '用户@例子.公司', status: 'delivered' },
    { email: 'JÜRGEN@example.com', dropped: true, drop_reason: 'duplicate' },
  ]);
  expect(record.bcc).toMatchObject([{ email: 'юрий@example.com', status: 'delivered' }]);

  for (const to of ['jürgen@example.com', '用户@例子.公司', 'юрий@example.com']) {
    const [copy, ...others] = copiesTo(modern, to);
    expect(others).toEqual([]);
    expect(copy).toMatchObject({ isUtf8: true, bodyType: '8bitmime' });
    const { to: named } = await PostalMime.parse(copy!.source);
    expect(named!.map(({ address }) => address)).toEqual(['jürgen@example.com', 'ann@example.com']);
  }
  const [plain] = copiesTo(modern, 'ann@example.com');
  expect(plain).toMatchObject({ isUtf8: false, bodyType: '7bit' });
  expect(plain!.source.every((octet) => octet < 0x80)).toBe(true);
  expect((await PostalMime.parse(plain!.source)).to).toEqual([
    { name: 'jürgen@Example.com', group: [] },
    { name: '', address: 'ann@example.com' },
  ]);

  const theirs = await send(server, { from: 'hello@other.example', to: ['jürgen@example.com'] }, other);
  expect((await settled(server, theirs, other)).to).toMatchObject([{ drop_reason: 'suppressed' }]);
});

test('mail to ASCII addresses leaves as it would if there were no others', async () => {
  await settled(server, await send(server, { to: ['plain@bücher.example'], subject: 'Grüße' }));
  const [copy] = copiesTo(modern, 'plain@bücher.example');
  expect(copy).toMatchObject({ isUtf8: false, bodyType: '7bit' });
  expect(copy!.source.toString()).toContain('\r\nTo: plain@xn--bcher-kva.example\r\n');
});

test("a relay that does not offer SMTPUTF8 gets everybody else's mail, and the address is not suppressed", async () => {
  const to = ['jürgen@example.com', 'ann@example.com'];
  for (let round = 1; round <= 2; round += 1) {
    const record = await settled(behind, await send(behind, { to }));
    expect(record).toMatchObject({ status: 'partially_delivered' });
    expect(record.to).toMatchObject([
      {
        email: 'jürgen@example.com',
        status: 'failed',
        dropped: false,
        uncertain: false,
        bounce: {
          type: 'soft',
          class: 'other',
          smtp_code: null,
          enhanced_code: '5.6.7',
          diagnostic: 'the address goes beyond ASCII, and the server does not offer SMTPUTF8',
          remote_mta: '127.0.0.1',
        },
      },
      { email: 'ann@example.com', status: 'delivered' },
    ]);
    expect(old.received).toHaveLength(round);
  }
  expect(old.received.map((copy) => copy.to)).toEqual(['ann@example.com', 'ann@example.com']);
});

test.each([
  ['from', { from: 'jürgen@postillion.test' }],
  ['reply_to', { reply_to: 'jürgen@example.com' }],
])('%s is an address that everybody can answer', async (field, more) => {
  const message = `${field} must be an email address with ASCII before the @`;
  expect(await post(server, anEmail(more))).toMatchObject({ status: 422, body: { message } });
  const { subject: _subject, to: _to, text: _text, ...campaign } = anEmail({ name: 'News', ...more });
  expect(await server.request('POST', '/v1/email/campaigns', campaign)).toMatchObject({
    status: 422,
    body: { message },
  });
});

test.each([
  'ü\u200b@example.com',
  '\u202eü@example.com',
  'ü＠b@example.com',
  'ü\r\nBcc: b@example.com',
  'ü b@example.com',
])('the recipient %j is refused', async (address) => {
  const message = 'to[0] must be an email address';
  expect(await post(server, anEmail({ to: [address] }))).toMatchObject({ status: 422, body: { message } });
  expect(await server.request('POST', '/v1/contacts', { email: address })).toMatchObject({ status: 422 });
});

describe('a contact', () => {
  type Contact = { id: string; email: string };
  const create = (email: string, key?: string) =>
    server.request<Contact>(
      'POST',
      '/v1/contacts',
      { email },
      authorize(key === undefined ? undefined : { key }),
    );
  const find = async (query: Record<string, string>) => {
    const { body } = await server.request<{ data: Contact[] }>(
      'GET',
      `/v1/contacts?${new URLSearchParams(query).toString()}`,
    );
    return body.data.map(({ email }) => email);
  };

  test('is one person, however the address is written', async () => {
    const { status, body } = await create('Νίκος.Παπάς@Example.com'.normalize('NFD'));
    expect({ status, email: body.email }).toEqual({ status: 201, email: 'Νίκος.Παπάς@Example.com' });
    expect(await create('ΝΊΚΟΣ.ΠΑΠΆΣ@EXAMPLE.com')).toMatchObject({ status: 409 });
    expect(await create('νίκος.παπάς@example.com', other.key)).toMatchObject({ status: 201 });
    const shown = ['Νίκος.Παπάς@Example.com'];
    expect(await find({ email: 'νίκος.παπάς@example.com' })).toEqual(shown);
    expect(await find({ search: 'ΝΊΚΟΣ.Π'.normalize('NFD') })).toEqual(shown);
    expect(await find({ search: 'νικος' })).toEqual([]);
  });

  test('is imported, found by a condition, named by an event and written to, as the same person', async () => {
    await server.request('POST', '/v1/events', { name: 'signed_up' });
    const { body: event } = await server.request('POST', '/v1/events/send', {
      event: 'signed_up',
      email: 'zoe\u0308@example.com',
    });
    expect(event).toHaveProperty('id');
    const found = await eventually(
      () => find({ email: 'ZOË@example.com' }),
      (emails) => emails.length > 0,
    );
    expect(found).toEqual(['zoë@example.com']);
    const { organizationId } = server;
    const outcome = await importContacts(server.installation, {
      organizationId,
      source: Readable.from([
        Buffer.from('email,first_name\nZOE\u0308@example.com,Zoë\n\ufffd@example.com,Lost\n'),
      ]) as AsyncIterable<Buffer>,
      lists: [],
      tags: [],
      mapped: [],
      ignored: [],
      isDryRun: false,
    });
    expect(outcome).toMatchObject({ kind: 'ended', counts: { created: 0, updated: 1, bad: 1 } });
    const [contact] = await rowsOf<Contact>(
      server,
      'select id, email from contacts where organization_id = $1 and email_key = $2',
      [organizationId, 'zoë@example.com'],
    );
    const { messageId } = await insertSentCampaign(server.installation, {
      organizationId,
      contacts: [contact!],
    });
    await queueCampaign(server.installation, messageId);
    await eventually(
      () => queueOf(server, messageId),
      (jobs) => jobs.length === 0,
    );
    const [copy] = copiesTo(modern, contact!.email);
    expect(copy).toMatchObject({ isUtf8: true });
    const { to, headers } = await PostalMime.parse(copy!.source);
    expect(to).toMatchObject([{ address: contact!.email }]);
    const unsubscribe = headers.find(({ key }) => key === 'list-unsubscribe')!.value;
    const link = /<(http[^>]*)>/.exec(unsubscribe)![1]!;
    expect(link).toMatch(/^[!-~]+$/);
    const clicked = await fetch(`${server.url}${new URL(link).pathname}`, {
      method: 'POST',
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      body: 'List-Unsubscribe=One-Click',
    });
    expect(clicked.status).toBe(200);
    const { body } = await server.request('GET', `/v1/contacts/${contact!.id}`);
    expect(body).toMatchObject({ email: contact!.email, consent: { email: 'unsubscribed' } });
  });
});

test('a message is found by the beginning of such an address, composed or not', async () => {
  const id = await send(server, { to: ['élodie@example.com'] });
  const search = new URLSearchParams({ search: 'E\u0301LO' }).toString();
  const { body } = await server.request<{ data: { id: string }[] }>('GET', `/v1/email?${search}`);
  expect(body.data.map((message) => message.id)).toEqual([id]);
  await settled(server, id);
});

test.each([
  ['in UTF-8', 'message/global-delivery-status', 'utf-8; gone-ü@example.com', 'gone-ü@example.com'],
  ['in escapes', 'message/delivery-status', 'utf-8; gone-\\x{F6}@example.com', 'gone-ö@example.com'],
])(
  'a bounce that names the address %s suppresses it, for this organization alone',
  async (_how, type, named, to) => {
    const id = await send(server, { to: [to] });
    await settled(server, id);
    const [copy] = copiesTo(modern, to);
    const transport = createTransport({ host: '127.0.0.1', port: bouncePort, ignoreTLS: true });
    await transport.sendMail({
      envelope: { from: '', to: [copy!.from] },
      raw: [
        'From: Mail Delivery <mailer-daemon@example.com>',
        'Subject: Undelivered',
        'Content-Type: multipart/report; report-type=delivery-status; boundary=b',
        '',
        '--b',
        'Content-Type: text/plain; charset=utf-8',
        '',
        'Es gibt kein solches Postfach.',
        '--b',
        `Content-Type: ${type}`,
        '',
        'Reporting-MTA: dns; mx.example.com',
        '',
        `Final-Recipient: ${named}`,
        'Action: failed',
        'Status: 5.1.1',
        'Diagnostic-Code: smtp; 550 5.1.1 No such user',
        '',
        '--b--',
        '',
      ].join('\r\n'),
    });
    transport.close();
    expect((await read(server, id)).to).toMatchObject([
      { email: to, status: 'bounced', bounce: { type: 'hard', class: 'mailbox_not_found' } },
    ]);
    const again = await settled(server, await send(server, { to: [to.toUpperCase()] }));
    expect(again.to).toMatchObject([{ drop_reason: 'suppressed' }]);
    const theirs = await send(server, { from: 'hello@other.example', to: [to] }, other);
    expect((await settled(server, theirs, other)).to).toMatchObject([
      { status: 'delivered', dropped: false },
    ]);
  },
);
