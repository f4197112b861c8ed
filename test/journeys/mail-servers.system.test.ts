/**
 * Mail to servers that others have written: Postfix, Exim and OpenSMTPD, each in a file system of its own (see
 * test/support/mail-servers). What they make of a message, and what our record then says, is also the table of
 * docs/mail-servers.md; `npm run generate:mail-servers` writes it anew.
 */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { Resolver } from 'node:dns/promises';
import { type AddressInfo, createServer } from 'node:net';
import path from 'node:path';
import { authenticate } from 'mailauth';
import PostalMime from 'postal-mime';
import * as prettier from 'prettier';
import { afterAll, beforeAll, describe, expect, onTestFailed, test } from 'vitest';
import type { DomainRecord } from '../../src/domains/schema.ts';
import type { EmailRecipientRecord } from '../../src/email/schema.ts';
import {
  type DnsNameRecords,
  type DnsRecords,
  startDnsServer,
  type TestDnsServer,
} from '../support/dns-server.ts';
import {
  createShiftedClock,
  eventually,
  queueOf,
  read,
  rowsOf,
  send,
  type Sender,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { whyNot } from '../support/mail-servers/debian.ts';
import { startExim } from '../support/mail-servers/exim.ts';
import {
  credentials,
  type Host,
  hosts,
  type MailServer,
  type MailServerPlan,
  messageBytesMax,
} from '../support/mail-servers/mail-server.ts';
import { startOpenSmtpd } from '../support/mail-servers/opensmtpd.ts';
import { startPostfix } from '../support/mail-servers/postfix.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

const minuteMs = 60_000;
const bounceHost = 'bounces.host.example';
const otherDomain = 'other.example';

type Name = 'Postfix' | 'Exim' | 'OpenSMTPD';
type Peer = {
  name: Name;
  /** All domains for which it takes mail are below this one. */
  domain: string;
  addressOf: (host: Host) => string;
  deadAddress: string;
  program: string;
  start: (plan: MailServerPlan) => Promise<MailServer>;
};

/**
 * Debian 12's OpenSMTPD 6.8 offers STARTTLS, and breaks off every handshake: it cannot give its keys to OpenSSL 3
 * (https://github.com/OpenSMTPD/OpenSMTPD/issues/1171). It takes no password without TLS.
 */
const hasBrokenTls = (name: Name) => name === 'OpenSMTPD';

const definePeer = ([name, network, program]: [Name, number, string], start: Peer['start']): Peer => ({
  name,
  domain: `${name.toLowerCase()}.test`,
  addressOf: (host) => `127.0.${network}.${hosts.indexOf(host) + 1}`,
  deadAddress: `127.0.${network}.99`,
  program,
  start,
});

const allPeers = [
  definePeer(['Postfix', 11, 'usr/lib/postfix/sbin/master'], startPostfix),
  definePeer(['Exim', 12, 'usr/sbin/exim4'], startExim),
  definePeer(['OpenSMTPD', 13, 'usr/sbin/smtpd'], startOpenSmtpd),
];
const peers = allPeers.filter(({ name, program }) => {
  const reason = whyNot(program);
  if (reason !== null) console.log(`Skipped: mail to ${name}, because ${reason}.`);
  return reason === null;
});

type Outcome = {
  status: EmailRecipientRecord['status'];
  type?: 'hard' | 'soft';
  class?: string;
  isSuppressed?: boolean;
};

type Case = {
  /** The row of the table. */
  what: string;
  /** Local part, and the name below the server's domain. */
  to: `${string}@${string}`;
  textBytes?: number;
  /** After which the record is looked at: the first attempt, or all that the server has to say. */
  until: 'tried' | 'settled' | 'reported';
  outcome: Outcome;
  except?: Partial<Record<Name, Outcome | 'impossible'>>;
};

const delivered: Outcome = { status: 'delivered' };
const refused: Outcome = { status: 'failed', type: 'soft', class: 'policy' };
const unknown: Outcome = { status: 'bounced', type: 'hard', class: 'mailbox_not_found', isSuppressed: true };
const full: Outcome = { status: 'bounced', type: 'soft', class: 'mailbox_full' };

const cases = {
  plain: { what: 'takes a message, without TLS', to: 'ann@clear', until: 'settled', outcome: delivered },
  secure: {
    what: "takes a message, by TLS with a stranger's certificate that nobody has signed",
    to: 'ann@main',
    until: 'settled',
    outcome: delivered,
  },
  wrongCertificate: {
    what: 'has that certificate, and TLS is required of its domain',
    to: 'ann@required',
    until: 'tried',
    outcome: { status: 'delayed', type: 'soft', class: 'policy' },
  },
  noTls: {
    what: 'has no TLS, and TLS is required of its domain',
    to: 'ann@required-clear',
    until: 'tried',
    outcome: { status: 'delayed', type: 'soft', class: 'policy' },
  },
  greeting: {
    what: 'refuses the connection',
    to: 'ann@greeting',
    until: 'tried',
    outcome: { status: 'delayed', type: 'soft', class: 'policy' },
  },
  ehlo: {
    what: 'refuses EHLO and HELO',
    to: 'ann@ehlo',
    until: 'tried',
    outcome: { status: 'delayed', type: 'soft', class: 'policy' },
  },
  mail: { what: 'refuses MAIL', to: 'ann@mail', until: 'settled', outcome: refused },
  unknown: {
    what: 'refuses RCPT: nobody has this address',
    to: 'nobody@main',
    until: 'settled',
    outcome: unknown,
  },
  dropped: {
    what: 'refuses RCPT, and hangs up: nobody has this address',
    to: 'dropped@main',
    until: 'settled',
    outcome: unknown,
  },
  grey: {
    what: 'puts RCPT off: greylisted',
    to: 'grey@main',
    until: 'tried',
    outcome: { status: 'delayed', type: 'soft', class: 'policy' },
  },
  full: {
    what: 'puts RCPT off: the mailbox is full',
    to: 'full@main',
    until: 'tried',
    outcome: { ...full, status: 'delayed' },
  },
  brimful: { what: 'refuses RCPT: the mailbox is full', to: 'brimful@main', until: 'settled', outcome: full },
  large: {
    what: 'takes no message of this size, by its SIZE',
    to: 'ann@main',
    textBytes: messageBytesMax.main,
    until: 'settled',
    outcome: { status: 'failed', type: 'soft', class: 'message_too_large' },
  },
  data: { what: 'refuses DATA', to: 'ann@data', until: 'settled', outcome: refused },
  content: {
    what: 'refuses the content as spam, after the dot',
    to: 'ann@content',
    until: 'settled',
    outcome: { ...refused, class: 'spam' },
  },
  filling: {
    what: 'takes a message, and returns it: the mailbox is full',
    to: 'filling@main',
    until: 'reported',
    outcome: full,
  },
  former: {
    what: 'has an alias that leads to nobody',
    to: 'former@main',
    until: 'reported',
    outcome: { ...unknown, type: 'soft', isSuppressed: false },
    // OpenSMTPD looks where an alias leads to before it takes a message.
    except: { OpenSMTPD: unknown },
  },
  laterUnknown: {
    what: 'takes a message, and returns it: the next server says that nobody has this address',
    to: 'nobody@strict',
    until: 'reported',
    outcome: unknown,
  },
  laterRefused: {
    what: 'takes a message, and returns it: the next server refuses it by policy',
    to: 'refused@strict',
    until: 'reported',
    outcome: refused,
  },
  laterLarge: {
    what: 'takes a message, and returns it: it is too large for the next server',
    to: 'large@strict',
    textBytes: messageBytesMax.strict,
    until: 'reported',
    outcome: { status: 'failed', type: 'soft', class: 'message_too_large' },
    // All of its addresses have one limit.
    except: { OpenSMTPD: 'impossible' },
  },
  expired: {
    what: 'takes a message, and returns it: the next server was not reached in time',
    to: 'ann@gone',
    until: 'reported',
    outcome: { status: 'failed', type: 'soft', class: 'other' },
  },
} satisfies Record<string, Case>;

const outcomeOf = ({ outcome, except }: Case, { name }: Peer) => except?.[name] ?? outcome;

/** Those that this server can be brought to, by their names. */
function casesOf(peer: Peer): [string, Case][] {
  return Object.entries<Case>(cases).filter(([, row]) => outcomeOf(row, peer) !== 'impossible');
}

/** What the record of a recipient says, as a cell of the table. */
function describeRecord({ status, bounce }: EmailRecipientRecord, isSuppressed: boolean): string {
  if (bounce === null) return `\`${status}\``;
  const codes = [bounce.smtp_code, bounce.enhanced_code].filter((code) => code !== null).join(' ');
  return [
    `\`${status}\``,
    `${bounce.type} \`${bounce.class}\`${codes === '' ? '' : ` ${codes}`}`,
    ...(isSuppressed ? ['suppressed'] : []),
  ].join(', ');
}

/** By row and column. */
const cells = new Map<string, Map<Name, string>>();

function keepCell(what: string, name: Name, text: string): void {
  cells.set(what, (cells.get(what) ?? new Map<Name, string>()).set(name, text));
}

const open: (() => Promise<unknown>)[] = [];
let clock: ShiftedClock;
let dns: TestDnsServer;
let server: TestServer;
let other: Sender & { organizationId: string };
const mailServers = new Map<Name, MailServer>();
let port: number;

/** A port that is free now at every address; if another process takes it first, the test fails. */
async function findFreePort(): Promise<number> {
  const found = createServer().listen(0, '0.0.0.0');
  await once(found, 'listening');
  const { port: free } = found.address() as AddressInfo;
  found.close();
  await once(found, 'close');
  return free;
}

function recordsOf({ domain, addressOf }: Peer): DnsRecords {
  const leadTo = (name: string, host: Host): [string, DnsNameRecords][] => [
    [`${name}.${domain}`, { MX: [[10, `mx.${name}.${domain}`]] }],
    [`mx.${name}.${domain}`, { A: [addressOf(host)] }],
  ];
  return Object.fromEntries([
    ...hosts.filter((host) => host !== 'strict').flatMap((host) => leadTo(host, host)),
    ...['required', 'strict', 'gone'].flatMap((name) => leadTo(name, 'main')),
    ...leadTo('required-clear', 'clear'),
  ]);
}

/** The message of a case, and one of another organization to somebody at the same address of the same server. */
type Sent = { id: string; besides: { id: string; isRefusedToo: boolean } };
const sent = new Map<string, Sent>();
const keyOf = (name: string, { domain }: Peer) => `${name} ${domain}`;

describe.skipIf(peers.length === 0)('mail to servers of others', () => {
  beforeAll(async () => {
    const bouncePort = await findFreePort();
    port = await findFreePort();
    dns = await startDnsServer(Object.assign({}, ...peers.map(recordsOf)) as DnsRecords);
    open.push(dns.stop);
    await Promise.all(
      peers.map(async ({ name, domain, addressOf, deadAddress, start }) => {
        const bounces = { domains: ['send.postillion.test', `send.${otherDomain}`], port: bouncePort };
        const mailServer = await start({ addressOf, port, domain, bounces, deadAddress });
        open.push(mailServer.stop);
        mailServers.set(name, mailServer);
      }),
    );
    clock = createShiftedClock();
    server = await startTestServer({
      clock,
      worker: true,
      emailProvider: 'mx',
      providerSettings: {
        POSTILLION_MX_PORT: `${port}`,
        POSTILLION_MX_REQUIRE_TLS: peers
          .flatMap(({ domain }) => [`required.${domain}`, `required-clear.${domain}`])
          .join(','),
      },
      dnsServers: [dns.address],
      areDomainsLookedUp: true,
      bounceHost,
      bounceListener: { host: '127.0.0.1', port: bouncePort },
    });
    open.push(server.stop);
    other = await createSender(server.installation, otherDomain);
    await Promise.all(
      peers.flatMap((peer) =>
        casesOf(peer).map(async ([name, row]) => sent.set(keyOf(name, peer), await sendCase(row, peer))),
      ),
    );
  });

  afterAll(async () => {
    for (const close of open.splice(0).reverse()) await close();
  });

  async function sendCase({ what, to, textBytes = 0 }: Case, { domain }: Peer): Promise<Sent> {
    const [localPart, host] = to.split('@') as [string, string];
    const besides = localPart === 'ann' && textBytes === 0 && host !== 'gone' ? to : 'ann@main';
    const [id, besidesId] = await Promise.all([
      send(server, { to: [`${to}.${domain}`], subject: what, text: 'x\n'.repeat(textBytes / 2 + 1) }),
      send(server, { from: `hello@${otherDomain}`, to: [`${besides}.${domain}`], subject: what }, other),
    ]);
    return { id, besides: { id: besidesId, isRefusedToo: besides === to && textBytes === 0 } };
  }

  async function awaitRecord(
    id: string,
    until: Case['until'],
    sender?: Sender,
  ): Promise<EmailRecipientRecord> {
    if (until === 'tried') {
      await eventually(
        () => queueOf(server, id),
        ([job]) => job === undefined || job.attempts > 0,
      );
    } else await settled(server, id, sender);
    // Not by the API, which limits how often one may ask.
    await eventually(
      () => rowsOf(server, 'select from recipients where message_id = $1 and failure_class is null', [id]),
      (unreported) => until !== 'reported' || unreported.length === 0,
    );
    return (await read(server, id, sender)).to[0]!;
  }

  async function suppressedOf(organizationId: string): Promise<string[]> {
    const found = await rowsOf<{ address: string }>(
      server,
      `select address from suppressions where organization_id = $1 and channel = 'email'`,
      [organizationId],
    );
    return found.map(({ address }) => address);
  }

  const withLog = (name: Name) => {
    onTestFailed(() => {
      console.log(`${name} says:\n${mailServers.get(name)!.readLog()}`);
    });
  };

  describe.each(peers.map((peer) => [peer.name, peer] as const))('%s', (name, peer) => {
    const { domain } = peer;

    test.each(casesOf(peer).map(([key, row]) => [row.what, key, row] as const))(
      'it %s',
      async (_, key, row) => {
        withLog(name);
        const expected = outcomeOf(row, peer) as Outcome;
        const { id, besides } = sent.get(keyOf(key, peer))!;
        const record = await awaitRecord(id, row.until);
        const isSuppressed = (await suppressedOf(server.organizationId)).includes(`${row.to}.${domain}`);
        keepCell(row.what, name, describeRecord(record, isSuppressed));
        expect({ ...record, isSuppressed }).toMatchObject({
          status: expected.status,
          dropped: false,
          bounce:
            expected.class === undefined
              ? null
              : { type: expected.type, class: expected.class, remote_mta: expect.any(String) as unknown },
          isSuppressed: expected.isSuppressed ?? false,
        });
        const next = await awaitRecord(besides.id, besides.isRefusedToo ? row.until : 'settled', other);
        expect(next).toMatchObject({
          status: besides.isRefusedToo ? expected.status : 'delivered',
          dropped: false,
        });
      },
    );

    test('a message arrives octet for octet, over TLS where that is offered', async () => {
      withLog(name);
      const text = ['.', '..a line', 'From here', 'Grüße, 日本語', 'unbroken'.repeat(2_000), '.', ''].join(
        '\n',
      );
      const subject = `Octets for ${name} – ü`;
      const id = await send(server, { to: [`ann@main.${domain}`], subject, text });
      expect(await awaitRecord(id, 'settled')).toMatchObject({ status: 'delivered' });
      const message = await eventually(
        () => findDelivered(name, subject),
        (found) => found !== null,
      );
      const parsed = await PostalMime.parse(message!);
      expect(parsed.text?.replaceAll('\r\n', '\n').trimEnd()).toBe(text.trimEnd());
      expect(await verifySignature(message!)).toEqual([['pass', 'postillion.test']]);
      expect(receivedBy(parsed)).toMatch(hasBrokenTls(name) ? /with ESMTP\b/i : /with ESMTPS\b/i);
      const plain = await findDelivered(name, cases.plain.what);
      expect(receivedBy(await PostalMime.parse(plain!))).toMatch(/with ESMTP\b/i);
    });

    test.skipIf(hasBrokenTls(name)).each([
      [
        'takes a message as a relay, with password and TLS',
        { options: 'tls=required&insecure=1', password: credentials.password, outcome: 'delivered' },
      ],
      [
        'is the relay, and the password is wrong',
        { options: 'tls=required&insecure=1', password: 'wrong', outcome: 'sent' },
      ],
      [
        'is the relay, and its certificate is not to be trusted',
        { options: 'tls=required', password: credentials.password, outcome: 'sent' },
      ],
    ])('it %s', async (what, { options, password, outcome }) => {
      withLog(name);
      const user = `${credentials.user}:${encodeURIComponent(password)}`;
      const smtpUrl = `smtp://${user}@${peer.addressOf('submission')}:${port}?${options}`;
      const relayed = await startTestServer({ worker: true, smtpUrl });
      try {
        const subject = `${what}, ${name}`;
        const id = await send(relayed, { to: [`ann@main.${domain}`], subject });
        // Of a relay that cannot be used the message knows nothing: it is put off without an attempt.
        await eventually(
          () =>
            rowsOf<{ is_put_off: boolean }>(
              relayed,
              'select due_at > accepted_at as is_put_off from delivery_queue where message_id = $1',
              [id],
            ),
          ([job]) => job === undefined || job.is_put_off,
        );
        const record = (await read(relayed, id)).to[0]!;
        keepCell(what, name, describeRecord(record, false));
        expect(record).toMatchObject({ status: outcome, bounce: null });
        if (outcome === 'delivered') {
          const message = await eventually(
            () => findDelivered(name, subject),
            (found) => found !== null,
          );
          expect(receivedBy(await PostalMime.parse(message!))).toMatch(/with ESMTPS/i);
        }
        await rowsOf(relayed, 'delete from delivery_queue');
      } finally {
        await relayed.stop();
      }
    });

    test('what the other organization has sent meanwhile has suppressed nobody', async () => {
      expect(await suppressedOf(other.organizationId)).toEqual([]);
      const again = (sender?: Sender) =>
        send(server, { ...(sender && { from: `a@${otherDomain}` }), to: [`nobody@main.${domain}`] }, sender);
      const [own, theirs] = await Promise.all([again(), again(other)]);
      expect(await awaitRecord(own, 'settled')).toMatchObject({ status: 'sent', drop_reason: 'suppressed' });
      expect(await awaitRecord(theirs, 'settled', other)).toMatchObject({
        status: 'bounced',
        dropped: false,
      });
      await rowsOf(server, 'delete from suppressions where organization_id = $1', [other.organizationId]);
    });
  });

  test('what was greylisted is taken when it comes again', async () => {
    await Promise.all(Array.from(mailServers.values(), (mailServer) => mailServer.endGreylisting()));
    // It may have come again already, and wait for longer.
    clock.putForward(60 * minuteMs);
    for (const peer of peers) {
      withLog(peer.name);
      const record = await awaitRecord(sent.get(keyOf('grey', peer))!.id, 'settled');
      keepCell('takes what it had greylisted, when it comes again', peer.name, describeRecord(record, false));
      expect(record).toMatchObject({ status: 'delivered', bounce: null });
    }
    await rowsOf(server, 'delete from delivery_queue');
  });

  test('every report of theirs was taken once: none has one left to deliver', async () => {
    for (const { name } of peers) {
      withLog(name);
      const { countQueued } = mailServers.get(name)!;
      await eventually(countQueued, (count) => count === 0);
    }
  });

  test('the table that was committed is what was recorded', async () => {
    await expect(await writeTable(readFileSync(page, 'utf8'))).toMatchFileSnapshot(page);
  });

  async function findDelivered(name: Name, subject: string): Promise<Buffer | null> {
    for (const message of await mailServers.get(name)!.readMailbox()) {
      if ((await PostalMime.parse(message)).subject === subject) return message;
    }
    return null;
  }

  async function verifySignature(message: Buffer): Promise<unknown> {
    const { body } = await server.request<{ data: DomainRecord[] }>('GET', '/v1/email/domains');
    const { name, value } = body.data[0]!.records.find(({ record }) => record === 'dkim')!;
    dns.set(name, { TXT: [value] });
    const resolver = new Resolver();
    resolver.setServers([dns.address]);
    const { dkim } = await authenticate(message, {
      ip: '127.0.0.1',
      trustReceived: false,
      disableArc: true,
      disableBimi: true,
      disableDmarc: true,
      resolver: async (question: string, type: string) =>
        (await resolver.resolve(question, type)) as string[] | string[][],
    });
    return dkim.results.map(({ status, signingDomain }) => [status.result, signingDomain]);
  }
});

/** How the server says that it got the message. */
function receivedBy({ headers }: { headers: { key: string; value: string }[] }): string {
  return headers.find(({ key }) => key === 'received')?.value ?? '';
}

const page = path.resolve(import.meta.dirname, '../../docs/mail-servers.md');

/** The page with its table as recorded; columns of servers that are not here stay as they are. */
async function writeTable(text: string): Promise<string> {
  const lines = text.split('\n');
  const begin = lines.findIndex((line) => line.startsWith('| The server'));
  const end = lines.findIndex((line, at) => at > begin && !line.startsWith('|'));
  const before = new Map(
    lines.slice(begin + 2, end).map((line) => {
      const [, what = '', ...columns] = line.split('|').map((cell) => cell.trim());
      return [what, columns];
    }),
  );
  const table = Array.from(cells, ([what, row]) => {
    const columns = allPeers.map(({ name }, at) =>
      peers.some((peer) => peer.name === name) ? (row.get(name) ?? '–') : (before.get(what)?.[at] ?? '–'),
    );
    return `| ${[what, ...columns].join(' | ')} |`;
  });
  const head = `| The server … | ${allPeers.map(({ name }) => name).join(' | ')} |`;
  const written = [...lines.slice(0, begin), head, '| - | - | - | - |', ...table, ...lines.slice(end)].join(
    '\n',
  );
  return prettier.format(written, { ...(await prettier.resolveConfig(page)), filepath: page });
}
