/** Mail to the recipients' own servers: a DNS server and a dozen mail hosts on loopback, each with a fault of its own. */
import { createTransport } from 'nodemailer';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { EmailRecord } from '../../src/email/schema.ts';
import { insertSentCampaign, queueCampaign } from '../support/campaign-fixture.ts';
import { type DnsNameRecords, startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import {
  createShiftedClock,
  eventually,
  queueOf,
  read,
  rowsOf,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { openMailHosts } from '../support/mx-world.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { type SinkAction, type SinkStep, type SmtpSink, startSmtpSink } from '../support/smtp-sink.ts';

const minuteMs = 60_000;
const hourMs = 60 * minuteMs;
const bounceHost = 'bounces.host.example';

let dns: TestDnsServer;
let hosts: Map<string, SmtpSink>;
let clock: ShiftedClock;
let server: TestServer;
let bouncePort: number;

/** Each domain's only host says this when it is asked. */
const refusals: Record<string, SinkAction | ((step: SinkStep) => SinkAction | undefined)> = {
  'greeting.test': (step) =>
    step.phase === 'connect' ? { reply: '554 5.7.1 No', thenClose: true } : undefined,
  'ehlo.test': (step) =>
    step.phase === 'ehlo' || step.phase === 'helo' ? { reply: '550 5.7.1 Go away' } : undefined,
  'mail.test': (step) => (step.phase === 'mail' ? { reply: '550 5.7.1 Sender blocked' } : undefined),
  'rcpt.test': (step) => (step.phase === 'rcpt' ? { reply: '550 5.1.1 User unknown' } : undefined),
  'data.test': (step) => (step.phase === 'data' ? { reply: '554 5.7.1 Policy' } : undefined),
  'content.test': (step) => (step.phase === 'content' ? { reply: '554 5.7.1 Looks like spam' } : undefined),
  'full.test': (step) => (step.phase === 'rcpt' ? { reply: '552 5.2.2 Mailbox full' } : undefined),
};

beforeAll(async () => {
  const addressOf = new Map(Object.keys(refusals).map((domain, index) => [domain, `127.0.1.${index + 1}`]));
  let hasSeenGrey = false;
  ({ sinks: hosts } = await openMailHosts({
    '127.0.0.2': {},
    '127.0.0.3': {
      script: ({ phase }) => {
        if (phase !== 'rcpt' || hasSeenGrey) return undefined;
        hasSeenGrey = true;
        return { reply: '450 4.7.1 Greylisted, try again later' };
      },
    },
    // Says nothing at all.
    '127.0.0.4': { script: ({ phase }) => (phase === 'connect' ? { stall: true } : undefined) },
    '::1': {},
    // Offers TLS, and speaks something else when it comes to it.
    '127.0.0.5': {
      script: ({ phase }) =>
        phase === 'ehlo'
          ? { reply: '250-broken\r\n250 STARTTLS' }
          : phase === 'starttls'
            ? { reply: '220 Go ahead\r\nthis is not TLS' }
            : undefined,
    },
    '127.0.0.6': { tls: 'starttls' },
    ...Object.fromEntries(
      Object.entries(refusals).map(([domain, script]) => [
        addressOf.get(domain)!,
        { script: (step: SinkStep) => (typeof script === 'function' ? script(step) : script) },
      ]),
    ),
  }));
  const port = hosts.get('127.0.0.2')!.port;
  const mx = (...exchanges: [number, string][]): DnsNameRecords => ({ MX: exchanges });
  dns = await startDnsServer({
    'gmail.com': { A: ['127.0.0.1'] },
    'good.test': mx([10, 'mx.good.test']),
    'mx.good.test': { A: ['127.0.0.2'] },
    'grey.test': mx([10, 'mx.grey.test']),
    'mx.grey.test': { A: ['127.0.0.3'] },
    'slow.test': mx([10, 'mx.slow.test']),
    'mx.slow.test': { A: ['127.0.0.4'] },
    'dead.test': mx([10, 'mx.dead.test']),
    'mx.dead.test': { A: ['127.0.2.1'] },
    'null.test': mx([0, '']),
    'web.test': { TXT: ['no mail'] },
    'hollow.test': mx([10, 'mx.hollow.test']),
    'six.test': mx([10, 'mx.six.test']),
    'mx.six.test': { AAAA: ['::1'] },
    'implicit.test': { A: ['127.0.0.2'] },
    'tlsbroken.test': mx([10, 'mx.tlsbroken.test']),
    'mx.tlsbroken.test': { A: ['127.0.0.5'] },
    'tls.test': mx([10, 'mx.tls.test']),
    'mx.tls.test': { A: ['127.0.0.6'] },
    'strict.test': mx([10, 'mx.tls.test']),
    'two.test': mx([20, 'mx.good.test'], [10, 'mx.dead.test']),
    'servfail.test': mx([10, 'mx.good.test']),
    ...Object.fromEntries<DnsNameRecords>(
      [...addressOf].flatMap(([domain, address]): [string, DnsNameRecords][] => [
        [domain, mx([10, `mx.${domain}`])],
        [`mx.${domain}`, { A: [address] }],
      ]),
    ),
  });
  dns.fail('servfail.test', 'SERVFAIL');

  // A free port for the listener, which has to be known before it starts.
  const placeholder = await startSmtpSink();
  bouncePort = placeholder.port;
  await placeholder.close();
  clock = createShiftedClock();
  server = await startTestServer({
    clock,
    worker: true,
    emailProvider: 'mx',
    providerSettings: { POSTILLION_MX_PORT: `${port}`, POSTILLION_MX_REQUIRE_TLS: 'Strict.test' },
    dnsServers: [dns.address],
    areDomainsLookedUp: true,
    bounceHost,
    bounceListener: { host: '127.0.0.1', port: bouncePort },
  });
});
afterAll(async () => {
  await server.stop();
  await Promise.all([...hosts.values()].map((host) => host.close()));
  await dns.stop();
});

const recipientOf = (record: EmailRecord) => record.to[0]!;
const settle = async (to: string) => recipientOf(await settled(server, await send(server, { to: [to] })));

/** Resolves once an attempt was made and the next one waits. */
async function delayed(id: string, attempts = 1) {
  await eventually(
    () => queueOf(server, id),
    ([job]) => job?.attempts === attempts,
  );
  return recipientOf(await read(server, id));
}

test.each(['good.test', 'implicit.test', 'six.test', 'tlsbroken.test', 'tls.test', 'two.test'])(
  'mail to %s arrives',
  async (domain) => {
    expect(await settle(`ann@${domain}`)).toMatchObject({
      status: 'delivered',
      bounce: null,
      dropped: false,
    });
  },
);

test('TLS is used where it can be had', () => {
  const secureness = (address: string) => hosts.get(address)!.messages.map(({ isSecure }) => isSecure);
  expect(secureness('127.0.0.6')).toEqual([true]);
  expect(secureness('127.0.0.5')).toEqual([false]);
});

test.each([
  ['null.test', 'null_mx'],
  ['nowhere.test', 'invalid_domain'],
  ['web.test', 'no_mx'],
  ['hollow.test', 'unreachable'],
  ['mailinator.com', 'disposable'],
])('a recipient at %s is dropped as %s, and nothing is sent', async (domain, reason) => {
  expect(await settle(`ann@${domain}`)).toMatchObject({
    status: 'sent',
    dropped: true,
    drop_reason: reason,
    bounce: null,
  });
});

test('one recipient that is dropped leaves the others as they are', async () => {
  const record = await settled(
    server,
    await send(server, { to: ['ann@good.test', 'ben@null.test'], cc: ['cy@six.test'] }),
  );
  expect(record.status).toBe('partially_delivered');
  expect(
    [...record.to, ...record.cc].map(({ email, status, drop_reason }) => [email, status, drop_reason]),
  ).toEqual([
    ['ann@good.test', 'delivered', null],
    ['ben@null.test', 'sent', 'null_mx'],
    ['cy@six.test', 'delivered', null],
  ]);
});

test.each([
  ['mail.test', { status: 'failed', bounce: { type: 'soft', class: 'policy', enhanced_code: '5.7.1' } }],
  ['rcpt.test', { status: 'bounced', bounce: { type: 'hard', class: 'mailbox_not_found', smtp_code: 550 } }],
  ['data.test', { status: 'failed', bounce: { type: 'soft', class: 'policy' } }],
  ['content.test', { status: 'failed', bounce: { type: 'soft', class: 'spam' } }],
  ['full.test', { status: 'bounced', bounce: { type: 'soft', class: 'mailbox_full' } }],
])('a refusal by %s is what it is', async (domain, expected) => {
  const recipient = await settle(`ann@${domain}`);
  expect(recipient).toMatchObject(expected);
  expect(recipient.bounce!.remote_mta).toMatch(new RegExp(`^mx\\.${domain}`));
});

test('a hard bounce suppresses the address for the next message, and a refused message does not', async () => {
  expect(await settle('ann@rcpt.test')).toMatchObject({ status: 'sent', drop_reason: 'suppressed' });
  expect(await settle('ann@content.test')).toMatchObject({ status: 'failed', dropped: false });
});

test('greylisted mail comes again after a minute, and is delivered', async () => {
  const id = await send(server, { to: ['ann@grey.test'] });
  expect(await delayed(id)).toMatchObject({ status: 'delayed', bounce: { type: 'soft', smtp_code: 450 } });
  clock.putForward(2 * minuteMs);
  expect(recipientOf(await settled(server, id))).toMatchObject({ status: 'delivered', bounce: null });
});

test.each(['greeting.test', 'ehlo.test', 'servfail.test', 'strict.test'])(
  'mail to %s waits for better times',
  async (domain) => {
    const id = await send(server, { to: [`ann@${domain}`] });
    expect(await delayed(id)).toMatchObject({ status: 'delayed', dropped: false, bounce: { type: 'soft' } });
    await rowsOf(server, 'delete from delivery_queue where message_id = $1', [id]);
  },
);

test('a host that says nothing delays no other', async () => {
  const connected = hosts.get('127.0.0.4')!.reached('connect');
  await Promise.all(
    Array.from({ length: 60 }, (_, index) => send(server, { to: [`slow-${index}@slow.test`] })),
  );
  await connected;
  expect(await settle('quick@good.test')).toMatchObject({ status: 'delivered' });
  await rowsOf(
    server,
    `delete from delivery_queue q
     using recipients r
     where r.address like '%@slow.test' and r.message_id = q.message_id`,
  );
});

test('mail to a host that is gone is given up after three days', async () => {
  const id = await send(server, { to: ['ann@dead.test'] });
  expect(await delayed(id)).toMatchObject({ status: 'delayed', bounce: { type: 'soft' } });
  for (let hours = 0; hours < 80; hours += 7) clock.putForward(7 * hourMs);
  const given = await eventually(
    async () => {
      clock.putForward(7 * hourMs);
      return recipientOf(await read(server, id));
    },
    ({ status }) => status === 'failed',
  );
  expect(given.bounce).toMatchObject({ type: 'soft' });
});

test('where nothing takes bounces, they go to the sender, although the return path was found in the DNS', async () => {
  const { providerSettings } = server.installation.config;
  const quiet = await startTestServer({
    worker: true,
    emailProvider: 'mx',
    providerSettings: { ...providerSettings, POSTILLION_MX_REQUIRE_TLS: '' },
    dnsServers: [dns.address],
  });
  try {
    await rowsOf(
      quiet,
      `update domains
       set findings = '{"return_path_mx":{"status":"verified","found":[],"checkedAt":null}}'
       where name = 'postillion.test'`,
    );
    const host = hosts.get('127.0.0.2')!;
    const before = host.messages.length;
    await settled(quiet, await send(quiet, { from: 'a@postillion.test', to: ['ann@good.test'] }));
    expect(host.messages[before]!.envelopeFrom).toBe('a@postillion.test');
  } finally {
    await quiet.stop();
  }
});

describe('what comes back', () => {
  const deliverTo = async (address: string) => {
    const host = hosts.get('127.0.0.2')!;
    const before = host.messages.length;
    const id = await send(server, { to: [address] });
    await settled(server, id);
    return { id, returnPath: host.messages[before]!.envelopeFrom };
  };

  const returnMail = async (to: string, raw: string) => {
    const transport = createTransport({ host: '127.0.0.1', port: bouncePort, ignoreTLS: true });
    try {
      return await transport.sendMail({ envelope: { from: '', to: [to] }, raw });
    } finally {
      transport.close();
    }
  };

  const report = (
    status: string,
    diagnostic: string,
    more: { action?: string; to?: string; words?: string } = {},
  ) =>
    [
      'From: Mail Delivery <mailer-daemon@good.test>',
      'Subject: Undelivered',
      'Content-Type: multipart/report; report-type=delivery-status; boundary=b',
      '',
      '--b',
      'Content-Type: text/plain',
      '',
      more.words ?? 'It did not work.',
      '--b',
      'Content-Type: message/delivery-status',
      '',
      'Reporting-MTA: dns; mx.good.test',
      '',
      `Final-Recipient: rfc822; ${more.to ?? 'whoever@good.test'}`,
      `Action: ${more.action ?? 'failed'}`,
      `Status: ${status}`,
      `Diagnostic-Code: smtp; ${diagnostic}`,
      '',
      '--b--',
      '',
    ].join('\r\n');

  test('a report of an unknown mailbox replaces the delivery, and suppresses the address', async () => {
    const { id, returnPath } = await deliverTo('late@good.test');
    expect(recipientOf(await read(server, id)).status).toBe('delivered');
    await returnMail(
      returnPath.toUpperCase(),
      report('5.1.1', '550 5.1.1 No such user here', { to: 'LATE@Good.test' }),
    );
    expect(recipientOf(await read(server, id))).toMatchObject({
      status: 'bounced',
      bounce: { type: 'hard', class: 'mailbox_not_found', enhanced_code: '5.1.1' },
    });
    expect(await settle('late@good.test')).toMatchObject({ drop_reason: 'suppressed' });
  });

  test('in a report of several recipients what names ours decides, wherever it stands', async () => {
    const unknown = [
      'Final-Recipient: rfc822; other@good.test',
      'Action: failed',
      'Status: 5.1.1',
      'Diagnostic-Code: smtp; 550 5.1.1 No such user here',
      '',
      '',
    ].join('\r\n');
    const { id, returnPath } = await deliverTo('several@good.test');
    const ours = report('5.2.2', '552 5.2.2 Mailbox full', { to: 'Several@good.test' });
    await returnMail(returnPath, ours.replace('Final-Recipient', `${unknown}Final-Recipient`));
    expect(recipientOf(await read(server, id))).toMatchObject({
      status: 'bounced',
      bounce: { type: 'soft', class: 'mailbox_full' },
    });
    expect(await settle('several@good.test')).not.toMatchObject({ drop_reason: 'suppressed' });
  });

  test.each([
    ['as Postfix names it', 'alias@good.test', { to: 'gone@elsewhere.test' }],
    [
      'as Exim names it',
      'other-alias@good.test',
      {
        to: 'other-alias@good.test',
        words:
          '  gone@elsewhere.test\r\n    (generated from other-alias@good.test)\r\n    Unrouteable address',
      },
    ],
  ])(
    'a dead address that an alias leads to, %s, is a soft bounce, and suppresses the alias only after five',
    async (_, alias, named) => {
      for (let count = 1; count <= 5; count += 1) {
        const { id, returnPath } = await deliverTo(alias);
        await returnMail(returnPath, report('5.1.1', '550 5.1.1 User unknown', named));
        expect(recipientOf(await read(server, id))).toMatchObject({
          status: 'bounced',
          bounce: { type: 'soft', class: 'mailbox_not_found', enhanced_code: '5.1.1' },
        });
      }
      expect(await settle(alias)).toMatchObject({ drop_reason: 'suppressed' });
    },
  );

  test('a full mailbox is a soft bounce, and the address may be written to again', async () => {
    const { id, returnPath } = await deliverTo('brimful@good.test');
    await returnMail(returnPath, report('5.2.2', '552 5.2.2 Over quota'));
    expect(recipientOf(await read(server, id))).toMatchObject({
      status: 'bounced',
      bounce: { type: 'soft', class: 'mailbox_full' },
    });
    expect(await settle('brimful@good.test')).toMatchObject({ status: 'delivered' });
  });

  test('a message that was found to be spam says nothing about the address', async () => {
    const { id, returnPath } = await deliverTo('picky@good.test');
    await returnMail(returnPath, report('5.7.1', '554 5.7.1 Message looks like spam'));
    expect(recipientOf(await read(server, id))).toMatchObject({
      status: 'failed',
      bounce: { class: 'spam' },
    });
    expect(await settle('picky@good.test')).toMatchObject({ status: 'delivered' });
  });

  test('a delay changes nothing of what was delivered', async () => {
    const { id, returnPath } = await deliverTo('patient@good.test');
    await returnMail(returnPath, report('4.4.1', '421 4.4.1 Later', { action: 'delayed' }));
    expect(recipientOf(await read(server, id)).status).toBe('delivered');
  });

  test('a complaint stands above the delivery, and suppresses the address', async () => {
    const { id, returnPath } = await deliverTo('annoyed@good.test');
    await returnMail(
      returnPath,
      [
        'From: feedback@good.test',
        'Content-Type: multipart/report; report-type=feedback-report; boundary=b',
        '',
        '--b',
        'Content-Type: text/plain',
        '',
        'A complaint.',
        '--b',
        'Content-Type: message/feedback-report',
        '',
        'Feedback-Type: abuse',
        'User-Agent: Complaints/1.0',
        'Version: 1',
        '',
        '--b--',
        '',
      ].join('\r\n'),
    );
    expect(recipientOf(await read(server, id)).status).toBe('complained');
    expect(await settle('annoyed@good.test')).toMatchObject({ drop_reason: 'suppressed' });
  });

  test('an out-of-office reply changes nothing', async () => {
    const { id, returnPath } = await deliverTo('away@good.test');
    await returnMail(
      returnPath,
      'Auto-Submitted: auto-replied\r\nSubject: Away\r\n\r\nI am away, 550 5.1.1.\r\n',
    );
    expect(recipientOf(await read(server, id)).status).toBe('delivered');
  });

  test('mail to the address in List-Unsubscribe unsubscribes the recipient, and may come twice', async () => {
    const host = hosts.get('127.0.0.2')!;
    const contactOf = async (email: string) => {
      const { body } = await server.request<{ id: string }>('POST', '/v1/contacts', { email });
      return { id: body.id, email };
    };
    const contacts = [await contactOf('leaving@good.test'), await contactOf('staying@good.test')];
    const { messageId } = await insertSentCampaign(server.installation, {
      organizationId: server.organizationId,
      contacts,
    });
    const before = host.messages.length;
    await queueCampaign(server.installation, messageId);
    await eventually(
      () => queueOf(server, messageId),
      (jobs) => jobs.length === 0,
    );
    const copies = host.messages.slice(before);
    const copy = copies.find(({ recipients }) => recipients[0] === 'leaving@good.test')!;
    const header = copy.content.toString('latin1').replaceAll(/\r\n\s+/g, ' ');
    const [, address = ''] =
      /\r\nList-Unsubscribe: <http[^>]*>, <mailto:([^?]*)\?subject=unsubscribe>\r\n/.exec(header) ?? [];
    expect(address).toMatch(/^unsub-[a-z2-7]{52}@send\.postillion\.test$/);

    const consentOf = async ({ id }: { id: string }) =>
      (
        await rowsOf<{ channels: string[] }>(
          server,
          'select unsubscribed_channels as channels from contacts where id = $1',
          [id],
        )
      )[0]!.channels;
    const mail = 'From: leaving@good.test\r\nSubject: unsubscribe\r\n\r\n';
    // What others see of a copy, its return path, is no address at which it could be unsubscribed.
    const forged = copy.envelopeFrom.replace('bounce-', 'unsub-');
    await expect(returnMail(forged, mail)).rejects.toThrow(/550/);
    expect(await consentOf(contacts[0]!)).toEqual([]);

    await returnMail(address.toUpperCase(), mail);
    await returnMail(address, mail);
    expect(await consentOf(contacts[0]!)).toEqual(['email']);
    expect(await consentOf(contacts[1]!)).toEqual([]);
    const statuses = await rowsOf<{ status: string }>(
      server,
      'select status from recipients where message_id = $1 order by ordinal',
      [messageId],
    );
    expect(statuses.map(({ status }) => status)).toEqual(['unsubscribed', 'delivered']);
  });

  test('mail to anything but a return path of ours is refused, also to one that was tampered with', async () => {
    const { returnPath } = await deliverTo('path@good.test');
    const [token, host] = returnPath.split('@') as [string, string];
    const changed = `${token.slice(0, -1)}${token.endsWith('a') ? 'b' : 'a'}`;
    for (const address of [
      'postmaster@good.test',
      `hello@${host}`,
      `${changed}@${host}`,
      `${token}@send.elsewhere.example`,
      `${token}@postillion.test`,
    ]) {
      await expect(returnMail(address, report('5.1.1', '550 No'))).rejects.toThrow(/550/);
    }
  });
});
