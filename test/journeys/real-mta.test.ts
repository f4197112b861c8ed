import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createTransport } from 'nodemailer';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type InboundMail, startInboundListener } from '../../src/channels/email/inbound/listener.ts';
import { type BounceReport, readReport } from '../../src/channels/email/reports.ts';
import { readReturnPathToken, writeReturnPath } from '../../src/channels/email/return-path.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { silentLog } from '../../src/platform/log.ts';
import { createSecrets } from '../../src/platform/secrets.ts';

/**
 * Bounces of a real mail server: a Postfix with its queue and settings in a temporary directory takes mail with our
 * return paths, cannot deliver it for one reason or another, and sends its reports to our listener.
 */

/** Postfix changes its user, which only root can; most machines have none at all. */
const canRunPostfix = existsSync('/usr/sbin/postfix') && process.getuid?.() === 0;

const secrets = createSecrets('a secret of at least thirty-two characters');
const organizationId = randomUUID();
const returnHost = 'send.example.test';

type Postfix = { port: number; stop: () => void };

/** Ports that are free now; if another process takes one before Postfix does, the test fails. */
async function findFreePorts(count: number): Promise<number[]> {
  const servers = Array.from({ length: count }, () => createServer().listen(0, '127.0.0.1'));
  await Promise.all(servers.map((server) => once(server, 'listening')));
  const ports = servers.map((server) => (server.address() as AddressInfo).port);
  await Promise.all(servers.map((server) => new Promise<void>((resolve) => server.close(() => resolve()))));
  return ports;
}

/**
 * One Postfix as two servers: the first takes everything and delivers it, the second, under another name, is strict
 * and plays the remote side. All addresses are of loopback, and DNS is not asked.
 */
async function startPostfix(bouncePort: number): Promise<Postfix> {
  const [port = 0, remotePort = 0, deadPort = 0] = await findFreePorts(3);
  const place = mkdtempSync(path.join(tmpdir(), 'postillion-postfix-'));
  chmodSync(place, 0o755);
  const at = (name: string) => path.join(place, name);
  for (const name of ['settings', 'queue', 'data', 'mail']) mkdirSync(at(name));
  execFileSync('chown', ['postfix', at('data')]);
  execFileSync('chown', ['nobody', at('mail')]);

  const limitBytes = 100_000;
  writeFileSync(at('mail/full'), Buffer.alloc(limitBytes, '\n'));
  execFileSync('chown', ['nobody', at('mail/full')]);
  const map = (name: string, lines: readonly string[]) => {
    writeFileSync(at(name), `${lines.join('\n')}\n`);
    return `texthash:${at(name)}`;
  };
  const transports = map('transports', [
    `${returnHost} smtp:[127.0.0.1]:${bouncePort}`,
    `dead.test smtp:[127.0.0.1]:${deadPort}`,
    `remote.test smtp:[127.0.0.1]:${remotePort}`,
  ]);
  const mailboxes = map('mailboxes', ['known@local.test known', 'full@local.test full']);
  const access = map('access', [
    'nobody@remote.test 550 5.1.1 User unknown in virtual mailbox table',
    'refused@remote.test REJECT 5.7.1 This kind of mail is not for us',
  ]);

  writeFileSync(
    at('settings/main.cf'),
    `compatibility_level = 3.6
queue_directory = ${at('queue')}
data_directory = ${at('data')}
maillog_file = ${at('log')}
maillog_file_prefixes = ${place}
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
myhostname = mx.local.test
mydestination =
mynetworks = 127.0.0.0/8
alias_maps =
alias_database =
smtpd_peername_lookup = no
smtp_dns_support_level = disabled
smtp_host_lookup = native
smtp_address_preference = ipv4
smtpd_relay_restrictions = permit_mynetworks, reject
smtpd_reject_unlisted_recipient = no
virtual_mailbox_domains = local.test
virtual_mailbox_maps = ${mailboxes}
virtual_mailbox_base = ${at('mail')}
virtual_uid_maps = static:65534
virtual_gid_maps = static:65534
virtual_mailbox_limit = ${limitBytes}
message_size_limit = ${limitBytes}
transport_maps = ${transports}
# Given up after the first try.
maximal_queue_lifetime = 0
bounce_queue_lifetime = 0
`,
  );
  writeFileSync(
    at('settings/master.cf'),
    `127.0.0.1:${port} inet n - n - - smtpd
127.0.0.1:${remotePort} inet n - n - - smtpd
  -o myhostname=mx.remote.test
  -o message_size_limit=20000
  -o smtpd_recipient_restrictions=check_recipient_access,${access}
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
proxymap unix - - n - - proxymap
smtp unix - - n - - smtp
error unix - - n - - error
retry unix - - n - - error
virtual unix - n n - - virtual
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
`,
  );
  const control = (verb: 'start' | 'stop') => {
    execFileSync('/usr/sbin/postfix', ['-c', at('settings'), verb], { stdio: 'pipe', timeout: 10_000 });
  };
  control('start');
  return {
    port,
    stop: () => {
      try {
        control('stop');
      } finally {
        rmSync(place, { recursive: true, force: true });
      }
    },
  };
}

describe.skipIf(!canRunPostfix)('a report of a real mail server', () => {
  const open: (() => void | Promise<void>)[] = [];
  let postfix: Postfix;
  const waiting = new Map<string, (mail: InboundMail) => void>();

  beforeAll(async () => {
    const listener = await startInboundListener({
      host: '127.0.0.1',
      port: 0,
      hostName: 'bounces.example.test',
      clock: systemClock,
      log: silentLog,
      accepts: async (recipient) => waiting.has(recipient),
      receive: async (mail) => waiting.get(mail.recipient)?.(mail),
    });
    open.push(listener.stop);
    postfix = await startPostfix(listener.port);
    open.push(postfix.stop);
  });

  afterAll(async () => {
    for (const close of open.splice(0).reverse()) await close();
  });

  /** Hands a message to Postfix, and resolves to what comes back to its return path. */
  async function bounce(recipient: string, bodyBytes = 100, wantsReceipt = false): Promise<BounceReport> {
    const reference = { messageId: randomUUID(), ordinal: 7 };
    const returnPath = writeReturnPath(secrets, organizationId, reference, returnHost);
    const returned = new Promise<InboundMail>((resolve) => waiting.set(returnPath, resolve));
    const transport = createTransport({ host: '127.0.0.1', port: postfix.port, ignoreTLS: true });
    await transport.sendMail({
      envelope: { from: returnPath, to: [recipient] },
      raw: `Subject: Hello\r\n\r\n${`${'x'.repeat(76)}\r\n`.repeat(Math.ceil(bodyBytes / 78))}`,
      ...(wantsReceipt ? { dsn: { id: 'x', return: 'headers', notify: 'success' } } : {}),
    });
    transport.close();
    const mail = await returned;
    const token = readReturnPathToken(mail.recipient.split('@')[0]!);
    expect(token?.reference).toEqual(reference);
    expect(token?.isSignedFor(secrets, organizationId)).toBe(true);
    return readReport(mail.source);
  }

  const cases = [
    {
      name: 'its own unknown user is a hard bounce',
      recipient: 'nobody@local.test',
      expected: { failureClass: 'mailbox_not_found', type: 'hard', reply: { enhancedCode: '5.1.1' } },
    },
    {
      name: 'its own full mailbox is a soft bounce',
      recipient: 'full@local.test',
      expected: { failureClass: 'mailbox_full', type: 'soft', reply: { enhancedCode: '5.2.2' } },
    },
    {
      name: "another server's unknown user is a hard bounce",
      recipient: 'nobody@remote.test',
      expected: {
        failureClass: 'mailbox_not_found',
        type: 'hard',
        reply: { code: 550, enhancedCode: '5.1.1' },
      },
    },
    {
      name: "another server's policy says nothing of the address",
      recipient: 'refused@remote.test',
      expected: { failureClass: 'policy', type: 'soft', reply: { code: 554, enhancedCode: '5.7.1' } },
    },
    {
      name: 'a message too large for the other server says nothing of the address',
      recipient: 'known@remote.test',
      bodyBytes: 30_000,
      expected: { failureClass: 'message_too_large', type: 'soft', reply: { enhancedCode: '5.3.4' } },
    },
    {
      name: 'a host that cannot be reached says nothing of the address',
      recipient: 'someone@dead.test',
      expected: { failureClass: 'other', type: 'soft', reply: { code: null, enhancedCode: '4.4.1' } },
    },
  ];

  test.each(cases)('$name', async ({ recipient, bodyBytes, expected }) => {
    expect(await bounce(recipient, bodyBytes)).toMatchObject({
      kind: 'delivery_status',
      recipients: [{ action: 'failed', address: recipient, ...expected }],
    });
  });

  test('a receipt of delivery is no failure', async () => {
    expect(await bounce('known@local.test', 100, true)).toMatchObject({
      kind: 'delivery_status',
      recipients: [{ action: 'delivered', address: 'known@local.test', reply: { enhancedCode: '2.0.0' } }],
    });
  });
});
