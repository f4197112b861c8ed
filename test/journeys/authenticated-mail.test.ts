/** What we send, judged by a verifier that is not ours: DKIM, SPF and DMARC, through a DNS server on loopback. */
import { Resolver } from 'node:dns/promises';
import { authenticate } from 'mailauth';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { DomainRecord } from '../../src/domains/schema.ts';
import { insertSentCampaign, queueCampaign } from '../support/campaign-fixture.ts';
import { type DnsNameRecords, startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import { hasDkimpy, isVerifiedByDkimpy } from '../support/dkimpy.ts';
import {
  createShiftedClock,
  eventually,
  queueOf,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { type SmtpSink, startSmtpSink } from '../support/smtp-sink.ts';

const name = 'sender.example';
const bounceHost = 'bounces.host.example';

let dns: TestDnsServer;
let sink: SmtpSink;
let server: TestServer;
let clock: ShiftedClock;
let dkimRecord: string;

beforeAll(async () => {
  sink = await startSmtpSink({ keepContent: true, smtpUtf8: true, address: '127.0.0.2' });
  dns = await startDnsServer({
    'recipient.example': { MX: [[10, 'mx.recipient.example']] },
    'mx.recipient.example': { A: ['127.0.0.2'] },
    [bounceHost]: { A: ['127.0.0.1'], TXT: [`v=spf1 a:${bounceHost} -all`] },
  });
  clock = createShiftedClock();
  server = await startTestServer({
    worker: true,
    clock,
    emailProvider: 'mx',
    providerSettings: { POSTILLION_MX_PORT: `${sink.port}` },
    dnsServers: [dns.address],
    areDomainsLookedUp: true,
    bounceHost,
    mailHost: bounceHost,
  });
  const { body: domain } = await server.request<DomainRecord>('POST', '/v1/email/domains', { name });
  const published = new Map<string, DnsNameRecords>();
  for (const { type, name: at, value, priority } of domain.records) {
    const record: DnsNameRecords = type === 'MX' ? { MX: [[priority!, value]] } : { TXT: [value] };
    published.set(at, { ...published.get(at), ...record });
  }
  dkimRecord = domain.records.find(({ record }) => record === 'dkim')!.value;
  // The strictest policy there is: relaxed alignment would also pass for a relative of the domain.
  published.set(`_dmarc.${name}`, { TXT: ['v=DMARC1; p=reject; adkim=s'] });
  for (const [at, records] of published) dns.set(at, records);
  const { body } = await server.request<DomainRecord>('POST', `/v1/email/domains/${domain.id}/verify`);
  expect(body.status).toBe('verified');
});
afterAll(async () => {
  await server.stop();
  await sink.close();
  await dns.stop();
});

async function deliver(more: Record<string, unknown>) {
  const before = sink.messages.length;
  const id = await send(server, { from: `Hello.World@${name}`, to: ['ann@recipient.example'], ...more });
  const record = await settled(server, id);
  expect(record.status).toBe('delivered');
  return sink.messages.slice(before);
}

async function judge(message: { content: Buffer; envelopeFrom: string }) {
  const resolver = new Resolver();
  resolver.setServers([dns.address]);
  const result = await authenticate(message.content, {
    ip: '127.0.0.1',
    helo: bounceHost,
    sender: message.envelopeFrom,
    mta: 'mx.recipient.example',
    trustReceived: false,
    disableArc: true,
    disableBimi: true,
    resolver: async (question: string, type: string) =>
      (await resolver.resolve(question, type)) as string[] | string[][],
  });
  const { dkim, spf, dmarc } = result;
  return {
    dkim: dkim.results.map(({ status, signingDomain }) => [status.result, signingDomain]),
    spf: spf === false ? 'none' : [spf.status.result, spf.domain],
    dmarc: dmarc === false ? 'none' : dmarc.status.result,
  };
}

const passed = {
  dkim: [['pass', name]],
  spf: ['pass', `send.${name}`],
  dmarc: 'pass',
};

const longLine = 'an unbroken line of words '.repeat(2_000);
const attachment = {
  filename: 'Übersicht – 2026.pdf',
  content: Buffer.from(Array.from({ length: 70_000 }, (_, index) => index % 251)).toString('base64'),
};
const image = { filename: 'logo.png', content: Buffer.alloc(999, 7).toString('base64'), content_id: 'logo' };

test.each<[string, Record<string, unknown>]>([
  ['plain text', { text: 'Hello Ann' }],
  ['text that ends in blank lines and blanks', { text: 'Hello \t \r\n\r\n  \r\n\r\n' }],
  ['a line of 52,000 characters', { text: longLine, html: `<p>${longLine}</p>` }],
  [
    'Unicode everywhere',
    { subject: 'Grüße 👋 日本語', from_name: 'Jürgen „J“ 👩‍🚀', text: '日本語 \u202e🏳️‍🌈', html: '<p>ñ</p>' },
  ],
  ['an attachment', { text: 'See the file', attachments: [attachment] }],
  ['an inline image and a file', { html: '<img src="cid:logo" alt="">', attachments: [image, attachment] }],
  ['lines that begin with dots and From', { text: '.\r\n..\r\nFrom here\r\n.' }],
  ['a very long subject', { subject: 'ä'.repeat(998), text: 'x' }],
  [
    'variables',
    { subject: 'For {{name}}', html: '<b>{{name}}</b>', variables: { name: 'Ann & Ben\r\nBcc: x' } },
  ],
  ['reply-to and cc', { reply_to: 'answers@sender.example', cc: ['cc@recipient.example'], text: 'x' }],
])('%s passes DKIM, SPF and DMARC', async (_what, more) => {
  const messages = await deliver(more);
  expect(messages.length).toBeGreaterThan(0);
  for (const message of messages) expect(await judge(message)).toEqual(passed);
});

test('each copy has a return path of its own, at the domain, that carries no address', async () => {
  const messages = await deliver({ to: ['ann@recipient.example'], cc: ['ben@recipient.example'] });
  const paths = messages.map(({ envelopeFrom }) => envelopeFrom);
  expect(new Set(paths).size).toBe(2);
  for (const path of paths) {
    expect(path).toMatch(new RegExp(`^[a-z0-9-]{1,64}@send\\.${name}$`));
    expect(path).not.toMatch(/ann|ben/);
  }
});

test('a copy that was changed on the way fails', async () => {
  const [message] = await deliver({ text: 'Pay 100 euros' });
  const text = message!.content.toString('latin1');
  for (const changed of [
    text.replace('Pay 100', 'Pay 900'),
    text.replace('Subject: Hello', 'Subject: Hallo'),
    `Subject: Another\r\n${text}`,
    `From: other@sender.example\r\n${text}`,
  ]) {
    const content = Buffer.from(changed, 'latin1');
    expect(content.equals(message!.content)).toBe(false);
    const { dkim } = await judge({ ...message!, content });
    expect(dkim.map(([result]) => result)).not.toContain('pass');
  }
});

/** To one contact, and not let into the queue yet. */
async function insertCampaign(email: string): Promise<string> {
  const contact = await server.request<{ id: string }>('POST', '/v1/contacts', { email });
  const { messageId } = await insertSentCampaign(server.installation, {
    organizationId: server.organizationId,
    sender: `Hello.World@${name}`,
    contacts: [{ id: contact.body.id, email }],
  });
  return messageId;
}

async function deliverCampaign(messageId: string) {
  const before = sink.messages.length;
  await queueCampaign(server.installation, messageId);
  await eventually(
    () => queueOf(server, messageId),
    (jobs) => jobs.length === 0,
  );
  const [message] = sink.messages.slice(before);
  return message!;
}

test('the headers of one-click unsubscribing are signed: they can be neither changed nor added', async () => {
  const messageId = await insertCampaign('ann@recipient.example');
  const message = await deliverCampaign(messageId);
  expect(await judge(message)).toEqual(passed);
  const text = message.content.toString('latin1');
  for (const changed of [
    text.replace('/u/', '/x/'),
    text.replace('List-Unsubscribe-Post:', 'List-Unsubscribe-Past:'),
    `List-Unsubscribe: <https://other.example>\r\n${text}`,
    `List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n${text}`,
  ]) {
    expect(changed).not.toBe(text);
    const { dkim } = await judge({ ...message, content: Buffer.from(changed, 'latin1') });
    expect(dkim.map(([result]) => result)).not.toContain('pass');
  }
});

test('mail to addresses beyond ASCII is authenticated', async () => {
  const to = ['jürgen@recipient.example', 'ann@recipient.example'];
  const messages = await deliver({ to, cc: ['用户@recipient.example'], text: 'x' });
  expect(messages.map(({ recipients }) => recipients[0]).sort()).toEqual(
    [...to, '用户@recipient.example'].sort(),
  );
  for (const message of messages) expect(await judge(message)).toEqual(passed);
});

test('from elsewhere SPF does not pass', async () => {
  const [message] = await deliver({ text: 'x' });
  dns.set(bounceHost, { A: ['127.0.0.99'], TXT: ['v=spf1 ip4:127.0.0.99 -all'] });
  expect((await judge(message!)).spf).not.toContain('pass');
  dns.set(bounceHost, { A: ['127.0.0.1'], TXT: [`v=spf1 a:${bounceHost} -all`] });
});

test('a campaign that was held back for four hours is dated and signed when it leaves', async () => {
  const messageId = await insertCampaign('held-back@recipient.example');
  clock.putForward(4 * 3_600_000);
  const beganAtMs = clock.nowMs();
  const message = await deliverCampaign(messageId);
  expect(await judge(message)).toEqual(passed);
  const text = message.content.toString('latin1');
  const datedAtMs = Date.parse(/\r\nDate: (.*)\r\n/.exec(text)?.[1] ?? '');
  expect(datedAtMs).toBeGreaterThan(beganAtMs - 1_000);
  expect(text).toContain(` t=${datedAtMs / 1_000};`);
});

if (!hasDkimpy) console.log('Skipped, because dkimpy was not found (python3-dkim): the verification by it');

test.skipIf(!hasDkimpy)('a signature is verified by dkimpy as well', async () => {
  const messages = [
    await deliverCampaign(await insertCampaign('another@recipient.example')),
    ...(await deliver({ subject: 'Grüße  👋', text: 'Hello \t Ann\r\n\r\n', attachments: [attachment] })),
    // An octet of it is a space without a break in Latin-1.
    ...(await deliver({ to: ['à.là@recipient.example'], text: 'x' })),
  ];
  for (const { content } of messages) {
    expect(await isVerifiedByDkimpy(content, dkimRecord)).toBe(true);
    const changed = Buffer.from(content.toString('latin1').replace(/\r\nDate: ./, '\r\nDate: X'), 'latin1');
    expect(await isVerifiedByDkimpy(changed, dkimRecord)).toBe(false);
  }
});
