/** What comes to the addresses of the operator: complaints by feedback loops, and what people write. */
import { createTransport } from 'nodemailer';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  countPostmasterMail,
  deleteOldPostmasterMail,
  deletePostmasterMail,
  findPostmasterMail,
  listPostmasterMail,
} from '../../src/email/email.ts';
import { examinePostmaster } from '../../src/doctor/postmaster.ts';
import {
  authorize,
  createShiftedClock,
  eventually,
  read,
  rowsOf,
  type Sender,
  send,
  settled,
} from '../support/email-journey.ts';
import type { ShiftedClock } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { type SmtpSink, startSmtpSink } from '../support/smtp-sink.ts';

const bounceHost = 'bounces.host.example';
const otherDomain = 'other.example';

let sink: SmtpSink;
let server: TestServer;
let clock: ShiftedClock;
let other: Sender & { organizationId: string };
let bouncePort: number;

beforeAll(async () => {
  sink = await startSmtpSink({ keepContent: true });
  // A free port for the listener, which has to be known before it starts.
  const placeholder = await startSmtpSink();
  bouncePort = placeholder.port;
  await placeholder.close();
  clock = createShiftedClock();
  server = await startTestServer({
    clock,
    worker: true,
    smtpUrl: `smtp://127.0.0.1:${sink.port}?connections=1`,
    bounceHost,
    bounceListener: { host: '127.0.0.1', port: bouncePort },
  });
  other = await createSender(server.installation, otherDomain);
});
afterAll(async () => {
  await server.stop();
  await sink.close();
});
beforeEach(async () => {
  await deletePostmasterMail(server.installation.database, null);
});

type Copy = { id: string; returnPath: string; messageId: string };

/** The copy of the last recipient. */
async function deliver(to: string[], sender?: Sender): Promise<Copy> {
  const more = sender === undefined ? {} : { from: `hello@${otherDomain}` };
  const id = await send(server, { to, ...more }, sender);
  await settled(server, id, sender);
  const { envelopeFrom, content } = sink.messages.findLast(({ recipients }) =>
    recipients.includes(to.at(-1)!),
  )!;
  const messageId = /^Message-ID: <(.+)>\r$/im.exec(content.toString())![1]!;
  return { id, returnPath: envelopeFrom, messageId };
}

async function sendMail(to: string | string[], raw: string): Promise<void> {
  const transport = createTransport({ host: '127.0.0.1', port: bouncePort, ignoreTLS: true });
  try {
    await transport.sendMail({ envelope: { from: 'feedback@provider.test', to }, raw });
  } finally {
    transport.close();
  }
}

type Complaint = { type?: string; fields?: string; copy?: string; more?: string };

/** As RFC 5965 has it; `more` stands where nothing is to be believed. */
function writeComplaint({ type = 'abuse', fields = '', copy = '', more = '' }: Complaint): string {
  return [
    'From: Feedback <feedback@provider.test>',
    `Subject: FW: Hello ${more}`,
    ...(more === '' ? [] : [`X-Original-Mail-From: <${more}>`, `Return-Path: <${more}>`]),
    'Content-Type: multipart/report; report-type=feedback-report; boundary=b',
    '',
    '--b',
    'Content-Type: text/plain',
    '',
    `This is a complaint. ${more}`,
    '--b',
    'Content-Type: message/feedback-report',
    '',
    `Feedback-Type: ${type}`,
    'User-Agent: Complaints/1.0',
    'Version: 1',
    ...(fields === '' ? [] : [fields]),
    '--b',
    'Content-Type: message/rfc822',
    '',
    ...(copy === '' ? [] : [copy]),
    'From: hello@postillion.test',
    'To: redacted',
    '',
    `Hello. ${more}`,
    '--b--',
    '',
  ].join('\r\n');
}

const statusesOf = async ({ id }: Copy, sender?: Sender) =>
  (await read(server, id, sender)).to.map(({ status }) => status);

async function complaintsOf(organizationId: string): Promise<number> {
  const [row] = await rowsOf<{ complained: number }>(
    server,
    'select coalesce(sum(complained), 0)::integer as complained from reputation_counts where organization_id = $1',
    [organizationId],
  );
  return row!.complained;
}

const suppressedOf = (organizationId: string) =>
  rowsOf<{ address: string; reason: string }>(
    server,
    'select address, reason from suppressions where organization_id = $1 order by address',
    [organizationId],
  );

const kept = () => countPostmasterMail(server.installation.database);

describe('a complaint that a feedback loop reports', () => {
  test.each<[string, string, (copy: Copy) => Complaint]>([
    [
      'fbl',
      'the signed return path, as the report gives it',
      ({ returnPath }) => ({ fields: `Original-Mail-From: <${returnPath}>` }),
    ],
    [
      'Abuse',
      'the signed return path in the returned message, in another case, below one that was made unreadable',
      ({ returnPath }) => ({
        fields: 'Original-Mail-From: <redacted@provider.test>',
        copy: `Received: by mx.provider.test\r\nReturn-Path: <${returnPath.toUpperCase()}>`,
      }),
    ],
    [
      'postmaster',
      'the id of a message to one recipient',
      ({ messageId }) => ({ copy: `Message-ID: <${messageId}>` }),
    ],
    [
      'fbl',
      'the id below a header that never seems to end',
      ({ messageId }) => ({
        copy: `${Array.from({ length: 400 }, (_, at) => `X-Field-${at}: ${'x'.repeat(100)}`).join('\r\n')}\r\nMessage-ID: <${messageId}>`,
      }),
    ],
  ])('to %s is believed by %s', async (localPart, how, prove) => {
    const address = `believed-${localPart}-${how.length}@example.com`.toLowerCase();
    const copy = await deliver([address]);
    const others = await deliver([address], other);
    const before = await complaintsOf(server.organizationId);
    await sendMail(`${localPart}@${bounceHost}`, writeComplaint(prove(copy)));
    expect(await statusesOf(copy)).toEqual(['complained']);
    expect(await statusesOf(others, other)).toEqual(['delivered']);
    expect(await complaintsOf(server.organizationId)).toBe(before + 1);
    expect(await complaintsOf(other.organizationId)).toBe(0);
    expect(await suppressedOf(server.organizationId)).toContainEqual({ address, reason: 'complaint' });
    expect(await suppressedOf(other.organizationId)).toEqual([]);
    expect(await kept()).toEqual({ mail: 0, complaints: 0, isFull: false });
  });

  test('is of the recipient whose return path it has, also where there are others', async () => {
    const copy = await deliver(['first-of-two@example.com', 'second-of-two@example.com']);
    await sendMail(`fbl@${bounceHost}`, writeComplaint({ fields: `Original-Mail-From: ${copy.returnPath}` }));
    expect(await statusesOf(copy)).toEqual(['delivered', 'complained']);
  });

  test("with another organization's return path or message id concerns that organization alone", async () => {
    const own = await deliver(['shared@example.com']);
    const [byPath, byId] = [
      await deliver(['shared@example.com'], other),
      await deliver(['also-shared@example.com'], other),
    ];
    const before = await complaintsOf(server.organizationId);
    await sendMail(
      `fbl@${bounceHost}`,
      writeComplaint({ fields: `Original-Mail-From: <${byPath.returnPath}>` }),
    );
    await sendMail(`fbl@${bounceHost}`, writeComplaint({ copy: `Message-ID: <${byId.messageId}>` }));
    expect(await statusesOf(own)).toEqual(['delivered']);
    expect(await statusesOf(byPath, other)).toEqual(['complained']);
    expect(await statusesOf(byId, other)).toEqual(['complained']);
    expect(await complaintsOf(server.organizationId)).toBe(before);
    expect((await suppressedOf(server.organizationId)).map(({ address }) => address)).not.toContain(
      'shared@example.com',
    );
  });

  test.each<[string, (copy: Copy) => Complaint]>([
    ['nothing', () => ({})],
    [
      'a token that was tampered with',
      ({ returnPath }) => ({
        fields: `Original-Mail-From: <${returnPath.replace(/.@/, (end) => (end === 'a@' ? 'b@' : 'a@'))}>`,
      }),
    ],
    [
      "a token at the other organization's host",
      ({ returnPath }) => ({
        fields: `Original-Mail-From: <${returnPath.replace(/@.*/, `@send.${otherDomain}`)}>`,
      }),
    ],
    [
      "its id at the other organization's domain",
      ({ messageId }) => ({ copy: `Message-ID: <${messageId.replace(/@.*/, `@${otherDomain}`)}>` }),
    ],
    ['the token everywhere but where it counts', ({ returnPath }) => ({ more: returnPath })],
    ['the address of the recipient', () => ({ fields: 'Original-Rcpt-To: <unproven@example.com>' })],
  ])('and proves itself by %s changes nothing, and is kept', async (_what, prove) => {
    const copy = await deliver(['unproven@example.com']);
    const before = await complaintsOf(server.organizationId);
    await sendMail(`fbl@${bounceHost}`, writeComplaint(prove(copy)));
    expect(await statusesOf(copy)).toEqual(['delivered']);
    expect(await complaintsOf(server.organizationId)).toBe(before);
    expect(await kept()).toEqual({ mail: 0, complaints: 1, isFull: false });
  });

  test('and has the id of a message to two, which each of them knows, changes nothing', async () => {
    const copy = await deliver(['co-one@example.com', 'co-two@example.com']);
    await sendMail(`fbl@${bounceHost}`, writeComplaint({ copy: `Message-ID: <${copy.messageId}>` }));
    expect(await statusesOf(copy)).toEqual(['delivered', 'delivered']);
  });

  test.each(['not-spam', 'auth-failure', 'virus'])('is none if it is of the type %s', async (type) => {
    const copy = await deliver([`${type}@example.com`]);
    await sendMail(
      `fbl@${bounceHost}`,
      writeComplaint({ type, fields: `Original-Mail-From: <${copy.returnPath}>` }),
    );
    expect(await statusesOf(copy)).toEqual(['delivered']);
    expect(await kept()).toEqual({ mail: 0, complaints: 0, isFull: false });
  });

  const deep = (levels: number) =>
    Array.from(
      { length: levels },
      (_, level) => `Content-Type: multipart/mixed; boundary=n${level}\r\n\r\n--n${level}\r\n`,
    ).join('');
  test.each<[string, (token: string) => string]>([
    [
      'in a report within a thousand others',
      (token) =>
        `${deep(1_000)}Content-Type: message/feedback-report\r\n\r\nFeedback-Type: abuse\r\nVersion: 1\r\nOriginal-Mail-From: ${token}\r\n`,
    ],
    [
      'behind a hundred thousand parts',
      (token) =>
        `Content-Type: multipart/report; boundary=b\r\n\r\n${'--b\r\n\r\nx\r\n'.repeat(100_000)}--b\r\nContent-Type: message/feedback-report\r\n\r\nFeedback-Type: abuse\r\nVersion: 1\r\nOriginal-Mail-From: ${token}\r\n--b--\r\n`,
    ],
    [
      'in a copy of a copy',
      (token) =>
        writeComplaint({
          copy: `Subject: x\r\nContent-Type: message/rfc822\r\n\r\nReturn-Path: <${token}>\r\nSubject: y`,
        }),
    ],
    [
      'behind a megabyte of its own',
      (token) => writeComplaint({ copy: `X: ${'x'.repeat(1_000_000)}\r\nReturn-Path: ${token}` }),
    ],
  ])('and is hidden %s changes nothing', async (_where, hide) => {
    const copy = await deliver(['hidden@example.com']);
    await sendMail(`fbl@${bounceHost}`, hide(copy.returnPath));
    expect(await statusesOf(copy)).toEqual(['delivered']);
  });

  test('a hundred times at once counts once', async () => {
    const copy = await deliver(['replayed@example.com']);
    const before = await complaintsOf(server.organizationId);
    const raw = writeComplaint({ fields: `Original-Mail-From: <${copy.returnPath}>` });
    const transport = createTransport({
      host: '127.0.0.1',
      port: bouncePort,
      ignoreTLS: true,
      pool: true,
      maxConnections: 10,
    });
    await Promise.all(
      Array.from({ length: 100 }, () =>
        transport.sendMail({
          envelope: { from: '', to: [`fbl@${bounceHost}`, `abuse@${bounceHost}`] },
          raw,
        }),
      ),
    );
    transport.close();
    expect(await statusesOf(copy)).toEqual(['complained']);
    expect(await complaintsOf(server.organizationId)).toBe(before + 1);
  });

  test('counts in the guard, which suspends that organization and no other', async () => {
    const guarded = await createSender(server.installation, 'guarded.example');
    for (const sender of [guarded, other])
      await server.request(
        'POST',
        '/v1/webhooks',
        { kind: 'poll', events: ['organization.*'] },
        authorize(sender),
      );
    await rowsOf(
      server,
      `insert into reputation_counts (organization_id, hour, shard, sent, bounced, complained)
       select id, date_trunc('hour', $2::timestamptz) - interval '1 hour', 0, 1000, 0, 0 from unnest($1::uuid[]) as id`,
      [[guarded.organizationId, other.organizationId], new Date(clock.nowMs())],
    );
    for (let count = 1; count <= 6; count += 1) {
      const id = await send(
        server,
        { to: [`guarded-${count}@example.com`], from: 'hello@guarded.example' },
        guarded,
      );
      await settled(server, id, guarded);
      const { envelopeFrom } = sink.messages.at(-1)!;
      await sendMail(
        `fbl@${bounceHost}`,
        writeComplaint({ fields: `Original-Mail-From: <${envelopeFrom}>` }),
      );
    }
    const suspended = await rowsOf<{ id: string }>(
      server,
      "select id from organizations where 'email' = any (suspended_channels) and id = any ($1::uuid[])",
      [[guarded.organizationId, other.organizationId, server.organizationId]],
    );
    expect(suspended).toEqual([{ id: guarded.organizationId }]);
    const told = async (sender: typeof guarded) =>
      (
        await server.request<{ data: { type: string; data: object }[] }>(
          'GET',
          '/v1/webhook-events',
          undefined,
          authorize(sender),
        )
      ).body.data.map(({ type, data }) => ({ type, ...data }));
    expect(
      await eventually(
        () => told(guarded),
        (events) => events.length > 0,
      ),
    ).toMatchObject([{ type: 'organization.sending_suspended', channel: 'email', reason: 'reputation' }]);
    expect(await told(other)).toEqual([]);
  });
});

const letter = (words: string) =>
  `From: Ann <ann@example.test>\r\nSubject: =?utf-8?q?Your_server?=\u001b[31m\r\n\r\n${words}\r\n`;

describe('what people write to the postmaster', () => {
  test.each([
    ['postmaster', 'postmaster@bounces.host.example'],
    ['PostMaster@Bounces.Host.Example', 'postmaster@bounces.host.example'],
    ['abuse@bounces.host.example', 'abuse@bounces.host.example'],
    ['fbl@bounces.host.example', 'fbl@bounces.host.example'],
    ['postmaster@send.postillion.test', 'postmaster@send.postillion.test'],
    [`abuse@send.${otherDomain}`, `abuse@send.${otherDomain}`],
  ])('at %s is kept, and an operator reads it', async (address, recipient) => {
    await sendMail(address, letter('Your server is on our list.'));
    const { database } = server.installation;
    const [mail, ...more] = await listPostmasterMail(database, 10);
    expect(more).toEqual([]);
    expect(mail).toMatchObject({ kind: 'mail', recipient, isCut: false });
    const whole = await findPostmasterMail(database, mail!.id);
    expect(Buffer.from(whole!.source).toString()).toBe(letter('Your server is on our list.'));
    expect(await examinePostmaster(server.installation)).toMatchObject([
      { level: 'warning', subject: 'postmaster' },
    ]);
  });

  test.each([
    'postmaster@elsewhere.example',
    'postmaster@postillion.test',
    'hostmaster@bounces.host.example',
    'fbl+x@bounces.host.example',
  ])('at %s is refused', async (address) => {
    await expect(sendMail(address, letter('Hello.'))).rejects.toThrow(/550/);
  });

  test('to all of the addresses, and once more, is kept once', async () => {
    const addresses = ['fbl', 'abuse', 'postmaster'].map((localPart) => `${localPart}@${bounceHost}`);
    await sendMail(addresses, letter('One and the same.'));
    await sendMail(addresses, letter('One and the same.'));
    expect(await kept()).toEqual({ mail: 1, complaints: 0, isFull: false });
  });

  test('is kept whatever shape it has: a report, an answer, the code that registers a feedback loop', async () => {
    await sendMail('postmaster', 'Auto-Submitted: auto-generated\r\nSubject: Your code\r\n\r\n123456\r\n');
    await sendMail('postmaster', 'From: postmaster@mx.test\r\nSubject: Undelivered mail\r\n\r\n550 No\r\n');
    await sendMail('postmaster', 'no header at all');
    expect(await kept()).toEqual({ mail: 3, complaints: 0, isFull: false });
  });

  test('is cut where it is large, and refused where it is too large', async () => {
    await sendMail('postmaster', letter('x'.repeat(900).concat('\r\n').repeat(200)));
    const [mail] = await listPostmasterMail(server.installation.database, 1);
    expect(mail).toMatchObject({ isCut: true });
    expect((await findPostmasterMail(server.installation.database, mail!.id))!.source).toHaveLength(65_536);
    await expect(
      sendMail('postmaster', letter('x'.repeat(900).concat('\r\n').repeat(47_000))),
    ).rejects.toThrow();
    expect(await kept()).toMatchObject({ mail: 1 });
  });

  test('is put off when a thousand mails are kept, but complaints still count, until there is room', async () => {
    await rowsOf(
      server,
      `insert into postmaster_mail (id, kind, recipient, digest, source, is_cut)
       select gen_random_uuid(), 'mail', 'postmaster@bounces.host.example', sha256(n::text::bytea), '', false
       from generate_series(1, 999) n`,
    );
    await sendMail('postmaster', letter('The thousandth.'));
    await expect(sendMail('postmaster', letter('One more.'))).rejects.toThrow(/451/);
    // It was taken, and its sender may not have heard so.
    await sendMail('postmaster', letter('The thousandth.'));
    const copy = await deliver(['when-full@example.com']);
    await sendMail(`fbl@${bounceHost}`, writeComplaint({ fields: `Original-Mail-From: ${copy.returnPath}` }));
    expect(await statusesOf(copy)).toEqual(['complained']);
    await sendMail(`fbl@${bounceHost}`, writeComplaint({}));
    expect(await kept()).toEqual({ mail: 1_000, complaints: 1, isFull: true });
    expect(await examinePostmaster(server.installation)).toMatchObject([
      { level: 'problem' },
      { level: 'warning' },
    ]);

    const [newest] = await listPostmasterMail(server.installation.database, 1);
    expect(await deletePostmasterMail(server.installation.database, [newest!.id])).toBe(1);
    expect(await deletePostmasterMail(server.installation.database, null)).toBe(1_000);
    await sendMail('postmaster', letter('One more.'));
    expect(await kept()).toEqual({ mail: 1, complaints: 0, isFull: false });
  });

  test('of complaints that prove nothing a hundred are kept, and the rest is taken all the same', async () => {
    await rowsOf(
      server,
      `insert into postmaster_mail (id, kind, recipient, digest, source, is_cut)
       select gen_random_uuid(), 'complaint', 'fbl@bounces.host.example', sha256(n::text::bytea), '', false
       from generate_series(1, 100) n`,
    );
    await sendMail(`fbl@${bounceHost}`, writeComplaint({}));
    expect(await kept()).toEqual({ mail: 0, complaints: 100, isFull: false });
  });

  test('is deleted after 90 days', async () => {
    await sendMail('postmaster', letter('Long ago.'));
    const dayMs = 24 * 60 * 60_000;
    const { database } = server.installation;
    const after = (ms: number) => ({ clock: { ...clock, nowMs: () => clock.nowMs() + ms } });
    await deleteOldPostmasterMail(after(89 * dayMs), database);
    expect(await kept()).toMatchObject({ mail: 1 });
    await deleteOldPostmasterMail(after(91 * dayMs), database);
    expect(await kept()).toMatchObject({ mail: 0 });
    expect(await examinePostmaster(server.installation)).toMatchObject([{ level: 'ok' }]);
  });
});
