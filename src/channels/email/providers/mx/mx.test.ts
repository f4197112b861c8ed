import { afterEach, describe, expect, test } from 'vitest';
import { certificateForTests } from '../../../../../test/support/certificate-for-tests.ts';
import type { DnsRecords } from '../../../../../test/support/dns-server.ts';
import { describeEmailProvider } from '../../../../../test/support/email-provider-conformance.ts';
import { startMxWorld } from '../../../../../test/support/mx-world.ts';
import type { MxWorld } from '../../../../../test/support/mx-world.ts';
import type { SinkAction, SinkStep, SmtpSinkOptions } from '../../../../../test/support/smtp-sink.ts';
import type { SendOutcome } from '../../../outcome.ts';
import type { EmailHandOff, EmailProvider } from '../../provider.ts';
import { createMxProvider } from './mx.ts';
import { findMxRoute } from '../../mx-route.ts';
import type { MxProviderOptions } from './mx.ts';

const open: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

const hostA = '127.0.0.2';
const hostB = '127.0.0.3';
const hostC = '127.0.0.4';

/** Every test may add to it, and change it. */
const usualRecords: DnsRecords = {
  'example.test': {
    MX: [
      [10, 'mxa.test'],
      [20, 'mxb.test'],
    ],
  },
  'single.test': { MX: [[10, 'mxa.test']] },
  'other.test': { MX: [[10, 'mxc.test']] },
  'mxa.test': { A: [hostA] },
  'mxb.test': { A: [hostB] },
  'mxc.test': { A: [hostC] },
};

function createProvider(world: MxWorld, options: Partial<MxProviderOptions> = {}): EmailProvider {
  return createMxProvider({
    resolver: world.resolver,
    clock: world.clock,
    random: () => 0.5,
    heloName: 'client.test',
    port: world.port,
    mayUsePrivateAddresses: true,
    requiresTls: () => false,
    ...options,
  });
}

/** A provider in a world. All is closed after the test, and the provider must have left no connection or timer. */
async function arrange(
  hosts: Record<string, SmtpSinkOptions>,
  { records = {}, ...options }: Partial<MxProviderOptions> & { records?: DnsRecords } = {},
): Promise<{ world: MxWorld; provider: EmailProvider }> {
  const world = await startMxWorld({ ...usualRecords, ...records }, hosts);
  open.push(world.close);
  const provider = createProvider(world, options);
  open.push(async () => {
    await provider.close();
    await world.quiet();
    expect(world.clock.timers()).toBe(0);
  });
  return { world, provider };
}

const message = Buffer.from('Subject: hello\r\n\r\n.dot\r\n');

function send(
  provider: EmailProvider,
  recipient: string,
  more: Partial<EmailHandOff> = {},
): Promise<SendOutcome> {
  return provider.handOff({
    reference: { organizationId: 'org', messageId: 'message', ordinal: 0 },
    envelopeFrom: 'bounces@send.example.test',
    recipient,
    content: [message],
    confirm: async () => undefined,
    signal: new AbortController().signal,
    ...more,
  });
}

function sendMany(provider: EmailProvider, count: number, domain: string): Promise<SendOutcome[]> {
  return Promise.all(Array.from({ length: count }, (_, at) => send(provider, `r${at}@${domain}`)));
}

function kindsOf(outcomes: readonly SendOutcome[]): Record<string, number> {
  const kinds: Record<string, number> = {};
  for (const { kind } of outcomes) kinds[kind] = (kinds[kind] ?? 0) + 1;
  return kinds;
}

type Script = (step: SinkStep) => SinkAction | undefined;

/** Answers one phase in its own way, by default the first time only. */
function at(phase: SinkStep['phase'], action: SinkAction, times = 1): Script {
  let left = times;
  return (step) => (step.phase === phase && left-- > 0 ? action : undefined);
}

function always(phase: SinkStep['phase'], action: SinkAction): Script {
  return at(phase, action, Infinity);
}

/** Lets everything that is on its way through loopback and the event loop arrive. */
async function allReadsDone(): Promise<void> {
  for (let turn = 0; turn < 50; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

describeEmailProvider('mx', async () => {
  const world = await startMxWorld(usualRecords, {
    [hostA]: {
      script: ({ phase, line, recipient }) => {
        if (phase === 'content' && recipient.startsWith('lost@')) return { close: true, accept: true };
        if (phase === 'content' && recipient.startsWith('silent@')) return { stall: true, accept: true };
        if (phase !== 'rcpt') return undefined;
        if (line.includes('<rejected@')) return { reply: '550 5.1.1 User unknown' };
        if (line.includes('<deferred@')) return { reply: '451 4.3.0 Try again later' };
        return undefined;
      },
    },
  });
  return {
    provider: createProvider(world),
    recipients: {
      accepted: 'accepted@example.test',
      rejected: 'rejected@example.test',
      deferred: 'deferred@example.test',
    },
    recipientOfLostAnswer: 'lost@example.test',
    silence: {
      recipient: 'silent@example.test',
      whenTaken: () => world.at(hostA).reached('content'),
      passTime: world.clock.advance,
    },
    delivered: async () =>
      world.at(hostA).messages.map(({ envelopeFrom, recipients, content }) => ({
        envelopeFrom,
        recipient: recipients[0]!,
        content,
      })),
    dispose: async () => {
      // What was asked for a hand-off that was aborted ends by itself, and is the resolver's.
      await findMxRoute(world.resolver, 'example.test', () => 0);
      await world.quiet();
      expect(world.clock.timers()).toBe(0);
      await world.close();
    },
  };
});

describe('the way to the mail hosts', () => {
  test('mail goes to the preferred host, under the name of this machine', async () => {
    const { provider, world } = await arrange({ [hostA]: {}, [hostB]: {} });
    expect(await send(provider, 'a@example.test')).toMatchObject({
      kind: 'accepted',
      reply: { remote: 'mxa.test' },
    });
    expect(world.at(hostA).commands[0]).toBe('EHLO client.test');
    expect(world.at(hostB).counts.connections).toBe(0);
  });

  test('a host that is down is passed over, and is not asked again for the next connection', async () => {
    const { provider, world } = await arrange({ [hostB]: {} });
    expect((await send(provider, 'a@example.test')).kind).toBe('accepted');
    world.clock.advance(5_000);
    await world.quiet();
    const back = await world.open(hostA);
    expect((await send(provider, 'b@example.test')).kind).toBe('accepted');
    expect(back.counts.connections).toBe(0);
    world.clock.advance(300_000);
    await world.quiet();
    expect((await send(provider, 'c@example.test')).kind).toBe('accepted');
    expect(back.messages).toHaveLength(1);
  });

  const openings: [SinkStep['phase'], SinkAction, Partial<SendOutcome>][] = [
    ['connect', { reply: '554 5.7.1 blocked using dnsbl.test' }, { reason: 'spam' }],
    ['connect', { reply: '554 No SMTP service here' }, { reason: 'other' }],
    ['connect', { reply: '421 4.3.2 Shutting down' }, { reason: 'other' }],
    ['connect', { reply: '450 4.7.1 Try later' }, { reason: 'policy' }],
    ['connect', { reply: 'HTTP/1.1 400 Bad Request' }, { reason: 'other' }],
    ['connect', { close: true }, { reason: 'other' }],
    ['connect', { endlessly: '220-hello\r\n' }, { reason: 'other' }],
    ['ehlo', { reply: '421 4.7.0 Your name is not welcome' }, { reason: 'policy' }],
    ['ehlo', { close: true }, { reason: 'other' }],
  ];

  test.each(openings)('a host that answers %s with %j is passed over', async (phase, action, expected) => {
    const { provider, world } = await arrange({ [hostA]: { script: at(phase, action) }, [hostB]: {} });
    expect((await send(provider, 'a@example.test')).kind).toBe('accepted');
    expect(world.at(hostB).messages).toHaveLength(1);

    const alone = await arrange({ [hostA]: { script: at(phase, action) } });
    // The next host is asked as well, and says nothing.
    const outcome = await send(alone.provider, 'a@example.test');
    expect(outcome).toMatchObject({ kind: 'deferred', ...expected });
  });

  test('a host that refuses EHLO and HELO for good bounces nothing', async () => {
    const script: Script = ({ phase }) =>
      phase === 'ehlo' || phase === 'helo' ? { reply: '550 5.7.1 Access denied' } : undefined;
    const { provider } = await arrange({ [hostA]: { script } });
    expect(await send(provider, 'a@single.test')).toMatchObject({
      kind: 'deferred',
      reason: 'policy',
      reply: { code: 550, remote: 'mxa.test' },
    });
  });

  test('a host that does not greet is passed over after a minute', async () => {
    const { provider, world } = await arrange({
      [hostA]: { script: at('connect', { stall: true }) },
      [hostB]: {},
    });
    const reached = world.at(hostA).reached('connect');
    const sending = send(provider, 'a@example.test');
    await reached;
    await allReadsDone();
    world.clock.advance(60_000);
    expect((await sending).kind).toBe('accepted');
    expect(world.at(hostB).messages).toHaveLength(1);
  });

  test('hosts of equal preference are taken in the order that chance gave them', async () => {
    const equal = {
      'equal.test': {
        MX: [
          [10, 'mxa.test'],
          [10, 'mxb.test'],
        ] as [number, string][],
      },
    };
    for (const [turns, expected] of [
      [[0.1, 0.9], hostA],
      [[0.9, 0.1], hostB],
    ] as const) {
      let next = 0;
      const { provider, world } = await arrange(
        { [hostA]: {}, [hostB]: {} },
        { records: equal, random: () => turns[next++ % 2]! },
      );
      await send(provider, 'a@equal.test');
      expect(world.at(expected).messages).toHaveLength(1);
    }
  });

  test('no more than eight addresses are tried, and no more than four of one host', async () => {
    const script = always('connect', { reply: '554 5.7.1 No' });
    const addresses = Array.from({ length: 12 }, (_, number) => `127.0.1.${number + 1}`);
    const hosts = Object.fromEntries(addresses.map((address) => [address, { script }]));
    const many: DnsRecords = {
      'many.test': {
        MX: [
          [10, 'many1.test'],
          [20, 'many2.test'],
          [30, 'many3.test'],
        ],
      },
      'many1.test': { A: addresses.slice(0, 6) },
      'many2.test': { A: addresses.slice(6, 9) },
      'many3.test': { A: addresses.slice(9) },
    };
    const { provider, world } = await arrange(hosts, { records: many });
    expect((await send(provider, 'a@many.test')).kind).toBe('deferred');
    const connections = addresses.map((address) => world.at(address).counts.connections);
    expect(connections).toEqual([1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0]);
  });

  const routes: [what: string, records: DnsRecords, address: string][] = [
    ['no MX record, but an address', { 'plain.test': { A: [hostA] } }, hostA],
    ['no MX record, but an IPv6 address', { 'plain.test': { AAAA: ['::1'] } }, '::1'],
    [
      'a host with IPv6 only',
      { 'plain.test': { MX: [[1, 'six.test']] }, 'six.test': { AAAA: ['::1'] } },
      '::1',
    ],
    [
      'a host whose IPv6 address is dead',
      { 'plain.test': { MX: [[1, 'two.test']] }, 'two.test': { AAAA: ['::1'], A: [hostA] } },
      hostA,
    ],
    [
      'a host that DNS does not know beside one that it knows',
      {
        'plain.test': {
          MX: [
            [1, 'unknown.test'],
            [2, 'mxa.test'],
          ],
        },
      },
      hostA,
    ],
  ];

  test.each(routes)('%s: mail arrives', async (_what, records, address) => {
    const { provider, world } = await arrange({ [address]: {} }, { records });
    expect((await send(provider, 'a@plain.test')).kind).toBe('accepted');
    expect(world.at(address).messages).toHaveLength(1);
  });
});

describe('what DNS decides', () => {
  const decisions: [what: string, records: DnsRecords, expected: object][] = [
    [
      'no such domain',
      {},
      { kind: 'rejected', reason: 'domain_not_found', reply: { enhancedCode: '5.1.2' } },
    ],
    [
      'null MX',
      { 'target.test': { MX: [[0, '']], A: [hostA] } },
      { kind: 'rejected', reason: 'domain_not_found', reply: { enhancedCode: '5.1.10' } },
    ],
    [
      'neither MX record nor address',
      { 'target.test': { TXT: ['hello'] } },
      { kind: 'rejected', reason: 'domain_not_found', reply: { enhancedCode: '5.4.4' } },
    ],
    [
      'mail hosts without any address',
      { 'target.test': { MX: [[10, 'nowhere.test']], A: [hostA] } },
      { kind: 'rejected', reason: 'domain_not_found', reply: { enhancedCode: '5.4.4' } },
    ],
  ];

  test.each(decisions)('%s: the address is refused', async (_what, records, expected) => {
    const { provider, world } = await arrange({ [hostA]: {} }, { records });
    expect(await send(provider, 'a@target.test')).toMatchObject(expected);
    expect(world.at(hostA).counts.connections).toBe(0);
  });

  test.each(['single.test', 'mxa.test'])('a failure of DNS at %s only puts off', async (name) => {
    const { provider, world } = await arrange({ [hostA]: {} });
    world.dns.fail(name, 'SERVFAIL');
    expect(await send(provider, 'a@single.test')).toMatchObject({
      kind: 'deferred',
      reason: 'other',
      reply: { code: null, enhancedCode: '4.4.3' },
    });
  });

  test('a domain whose name servers are silent is put off, and does not speak for the provider', async () => {
    const { provider, world } = await arrange({ [hostA]: {} });
    world.dns.fail('silent.test', 'silent');
    const sending = send(provider, 'a@silent.test');
    await advanceUntil(world, sending);
    expect(await sending).toMatchObject({ kind: 'deferred', reason: 'other' });
    expect(await provider.probe()).toBeNull();
  });

  test('DNS that does not answer at all is about the provider and not about a domain', async () => {
    const { provider, world } = await arrange({ [hostA]: {} });
    await world.dns.stop();
    const sending = sendMany(provider, 3, 'single.test');
    await advanceUntil(world, sending);
    for (const outcome of await sending) {
      expect(outcome).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
    }
    const probing = provider.probe();
    await advanceUntil(world, probing);
    expect(await probing).toContain('DNS does not answer');
  });

  const inward: [what: string, addresses: object, kind: string][] = [
    ['this machine', { A: ['127.0.0.1'] }, 'rejected'],
    ['this machine by IPv6', { AAAA: ['::1'], A: ['0.0.0.0'] }, 'rejected'],
    ['this machine, wrapped', { AAAA: ['::ffff:127.0.0.2'] }, 'rejected'],
    ['a private network', { A: ['10.0.0.1'] }, 'deferred'],
    ['a metadata service', { A: ['169.254.169.254'], AAAA: ['fd00:ec2::254'] }, 'deferred'],
  ];

  test.each(inward)('mail for a domain that points to %s goes nowhere', async (_what, addresses, kind) => {
    const hosts = { '127.0.0.1': {}, [hostA]: {}, '::1': {} };
    const records = { 'inward.test': { MX: [[10, 'inside.test']] }, 'inside.test': addresses } as DnsRecords;
    const { provider, world } = await arrange(hosts, { records, mayUsePrivateAddresses: false });
    const outcome = await send(provider, 'a@inward.test');
    expect(outcome).toMatchObject({ kind, reason: 'domain_not_found' });
    expect(outcome.reply?.diagnostic).toContain('not public');
    for (const address of Object.keys(hosts)) expect(world.at(address).counts.connections).toBe(0);
  });

  test.each([
    'a@[127.0.0.2]',
    'a@127.0.0.2',
    'nobody',
    'a@',
    'a@two..dots.test',
    'a@b.test>\r\nRCPT TO:<c@d.test',
  ])('nothing is looked up or sent for %j', async (recipient) => {
    const { provider, world } = await arrange({ [hostA]: {} });
    expect((await send(provider, recipient)).kind).toBe('rejected');
    expect(world.dns.queries).toEqual([]);
  });
});

/** Moves time on, a minute at a time, until something has happened. */
async function advanceUntil(world: MxWorld, happening: Promise<unknown>): Promise<void> {
  let hasHappened = false;
  void happening.finally(() => {
    hasHappened = true;
  });
  while (!hasHappened) {
    await allReadsDone();
    if (!hasHappened) world.clock.advance(60_000);
  }
}

describe('what a mail host says of a message', () => {
  const replies: [SinkStep['phase'], string, object][] = [
    ['mail', '550 5.7.1 Sender rejected', { kind: 'rejected', reason: 'policy' }],
    ['mail', '451 4.3.0 Later', { kind: 'deferred', reason: 'other' }],
    ['rcpt', '550 5.1.1 User unknown', { kind: 'rejected', reason: 'mailbox_not_found' }],
    ['rcpt', '452 4.2.2 Mailbox full', { kind: 'deferred', reason: 'mailbox_full' }],
    ['data', '554 5.7.1 blocked using dnsbl.test', { kind: 'rejected', reason: 'spam' }],
    ['content', '550 5.7.26 failed DMARC', { kind: 'rejected', reason: 'auth_failure' }],
    ['content', '451 4.3.0 Local error', { kind: 'deferred', reason: 'other' }],
  ];

  test.each(replies)(
    'at %s, %j is the outcome, and no other host is asked',
    async (phase, reply, expected) => {
      const { provider, world } = await arrange({ [hostA]: { script: at(phase, { reply }) }, [hostB]: {} });
      expect(await send(provider, 'a@example.test')).toMatchObject(expected);
      expect((await send(provider, 'b@example.test')).kind).toBe('accepted');
      expect(world.at(hostA).counts.connections).toBe(1);
      expect(world.at(hostB).counts.connections).toBe(0);
    },
  );

  test('a connection lost after the dot is unknown, and the message goes to no other host', async () => {
    const script = at('content', { close: true, accept: true });
    const { provider, world } = await arrange({ [hostA]: { script }, [hostB]: {} });
    expect((await send(provider, 'a@example.test')).kind).toBe('unknown');
    expect(world.at(hostB).counts.connections).toBe(0);
  });

  test('greylisting puts off the one recipient, and pauses nothing', async () => {
    const seen = new Set<string>();
    const script: Script = ({ phase, line }) => {
      if (phase !== 'rcpt' || seen.has(line)) return undefined;
      seen.add(line);
      return { reply: '451 4.7.1 Greylisted, try again in five minutes' };
    };
    const { provider, world } = await arrange({ [hostA]: { script } });
    const first = await sendMany(provider, 5, 'single.test');
    for (const outcome of first) expect(outcome).toMatchObject({ kind: 'deferred', reason: 'policy' });
    expect(kindsOf(await sendMany(provider, 5, 'single.test'))).toEqual({ accepted: 5 });
    expect(world.at(hostA).messages).toHaveLength(5);
  });
});

describe('TLS', () => {
  const localhost: DnsRecords = {
    'secure.test': { MX: [[10, 'localhost']] },
    localhost: { A: [hostA] },
  };

  test('is used wherever it is offered, with any certificate', async () => {
    const { provider, world } = await arrange({ [hostA]: { tls: 'starttls' } });
    expect((await send(provider, 'a@single.test')).kind).toBe('accepted');
    expect(world.at(hostA).messages[0]!.isSecure).toBe(true);
  });

  test('gives way to plain text where it is broken', async () => {
    const script = always('starttls', { reply: '220 Ready', thenClose: true });
    const { provider, world } = await arrange({ [hostA]: { tls: 'starttls', script } });
    expect((await send(provider, 'a@single.test')).kind).toBe('accepted');
    expect(world.at(hostA).messages[0]!.isSecure).toBe(false);
  });

  test('is trusted by the name of the mail host where it is required', async () => {
    const { provider, world } = await arrange(
      { [hostA]: { tls: 'starttls' } },
      {
        records: localhost,
        requiresTls: (domain) => domain === 'secure.test',
        authorities: certificateForTests,
      },
    );
    expect((await send(provider, 'a@Secure.test')).kind).toBe('accepted');
    expect(world.at(hostA).messages[0]!.isSecure).toBe(true);
  });

  const untrusted: [what: string, SmtpSinkOptions, domain: string, authorities: string | undefined][] = [
    ['it is not offered', {}, 'secure.test', certificateForTests],
    [
      'it is broken',
      { tls: 'starttls', script: always('starttls', { close: true }) },
      'secure.test',
      undefined,
    ],
    [
      'it is refused',
      { tls: 'starttls', script: always('starttls', { reply: '454 4.7.0 Not now' }) },
      'secure.test',
      certificateForTests,
    ],
    ['the certificate is from no trusted authority', { tls: 'starttls' }, 'secure.test', undefined],
    ["the certificate is another host's", { tls: 'starttls' }, 'single.test', certificateForTests],
  ];

  test.each(untrusted)(
    'where it is required and %s, nothing is sent',
    async (what, sink, domain, authorities) => {
      const { provider, world } = await arrange(
        { [hostA]: sink },
        {
          records: localhost,
          requiresTls: () => true,
          ...(authorities === undefined ? {} : { authorities }),
        },
      );
      expect(await send(provider, `a@${domain}`)).toMatchObject({
        kind: 'deferred',
        // A connection cut at the command itself says nothing about TLS.
        reason: what === 'it is broken' ? 'other' : 'policy',
      });
      expect(world.at(hostA).commands.some((command) => command.startsWith('MAIL'))).toBe(false);
    },
  );

  test('that is required is not taken for done on a connection opened without', async () => {
    const { provider, world } = await arrange(
      { [hostA]: {} },
      {
        records: { 'strict.test': { MX: [[10, 'mxa.test']] } },
        requiresTls: (domain) => domain === 'strict.test',
      },
    );
    expect((await send(provider, 'a@single.test')).kind).toBe('accepted');
    expect((await send(provider, 'a@strict.test')).kind).toBe('deferred');
    expect(world.at(hostA).messages).toHaveLength(1);
  });
});

describe('an address beyond ASCII', () => {
  test('goes to the next host that offers SMTPUTF8, and other mail to the preferred one', async () => {
    const { provider, world } = await arrange({ [hostA]: {}, [hostB]: { smtpUtf8: true } });
    expect(await send(provider, 'a@example.test')).toMatchObject({ kind: 'accepted' });
    expect(await send(provider, 'jürgen@example.test')).toMatchObject({
      kind: 'accepted',
      reply: { remote: 'mxb.test' },
    });
    expect(await send(provider, 'b@example.test')).toMatchObject({
      kind: 'accepted',
      reply: { remote: 'mxa.test' },
    });
    expect(world.at(hostB).messages).toMatchObject([
      { recipients: ['jürgen@example.test'], parameters: expect.stringContaining('SMTPUTF8') as string },
    ]);
    expect(world.at(hostA).messages).toHaveLength(2);
  });

  test('is refused for good where every host has answered and none offers SMTPUTF8', async () => {
    const { provider, world } = await arrange({ [hostA]: {}, [hostB]: {} });
    expect(await send(provider, 'jürgen@example.test')).toMatchObject({
      kind: 'rejected',
      reason: 'other',
      reply: { code: null, enhancedCode: '5.6.7', remote: 'mxb.test' },
    });
    const commands = [hostA, hostB].flatMap((host) => world.at(host).commands);
    expect(commands.filter((command) => command !== 'QUIT')).toEqual([
      'EHLO client.test',
      'EHLO client.test',
    ]);
    // The hosts are not to blame.
    expect(await send(provider, 'a@example.test')).toMatchObject({ reply: { remote: 'mxa.test' } });
  });

  test('waits for a host that is away, since it may offer SMTPUTF8', async () => {
    const { provider, world } = await arrange({
      [hostA]: { script: at('connect', { reply: '421 4.3.2 Later', thenClose: true }), smtpUtf8: true },
      [hostB]: {},
    });
    expect(await send(provider, 'jürgen@example.test')).toMatchObject({ kind: 'deferred' });
    world.clock.advance(600_000);
    expect(await send(provider, 'jürgen@example.test')).toMatchObject({
      kind: 'accepted',
      reply: { remote: 'mxa.test' },
    });
  });

  test('is refused over one connection to each host, however many wait', async () => {
    const { provider, world } = await arrange({ [hostA]: {}, [hostB]: {} });
    const outcomes = await Promise.all(
      Array.from({ length: 50 }, (_, index) => send(provider, `ü${index}@example.test`)),
    );
    expect(kindsOf(outcomes)).toEqual({ rejected: 50 });
    expect(world.at(hostA).counts.connections).toBe(1);
    expect(world.at(hostB).counts.connections).toBe(1);
  });
});

describe('connections', () => {
  test('are shared by domains of the same hosts, and closed after five idle seconds', async () => {
    const sibling = { 'sibling.test': usualRecords['single.test']! };
    const { provider, world } = await arrange({ [hostA]: {} }, { records: sibling });
    for (const domain of ['single.test', 'sibling.test', 'single.test']) {
      expect((await send(provider, `a@${domain}`)).kind).toBe('accepted');
    }
    expect(world.at(hostA).counts.connections).toBe(1);
    await allReadsDone();
    world.clock.advance(5_000);
    await world.quiet();
    expect(world.at(hostA).commands.at(-1)).toBe('QUIT');
  });

  test('are not shared by domains that prefer the same hosts otherwise', async () => {
    const reversed: DnsRecords = {
      'reversed.test': {
        MX: [
          [10, 'mxb.test'],
          [20, 'mxa.test'],
        ],
      },
    };
    const { provider, world } = await arrange({ [hostA]: {}, [hostB]: {} }, { records: reversed });
    await send(provider, 'a@example.test');
    await send(provider, 'a@reversed.test');
    expect(world.at(hostB).messages.map(({ recipients }) => recipients[0])).toEqual(['a@reversed.test']);
  });

  test('carry a hundred messages each', async () => {
    const { provider, world } = await arrange(
      { [hostA]: {} },
      { limits: { connectionsPerDestinationMax: 1 } },
    );
    expect(kindsOf(await sendMany(provider, 120, 'single.test'))).toEqual({ accepted: 120 });
    const { messages } = world.at(hostA);
    expect([1, 2].map((number) => messages.filter(({ connection }) => connection === number).length)).toEqual(
      [100, 20],
    );
  });

  test('are eight at most to one destination, and one until the first has been greeted', async () => {
    let openAtFirstGreeting = 0;
    const { provider, world } = await arrange({
      [hostA]: {
        script: ({ phase, connection }) => {
          if (phase === 'ehlo' && connection === 1) openAtFirstGreeting = world.at(hostA).counts.connections;
          return undefined;
        },
      },
    });
    expect(kindsOf(await sendMany(provider, 100, 'single.test'))).toEqual({ accepted: 100 });
    expect(openAtFirstGreeting).toBe(1);
    expect(world.at(hostA).counts.connections).toBe(8);
  });

  test('that are idle make way for other destinations when there are too many, without a long farewell', async () => {
    const { provider, world } = await arrange(
      { [hostA]: { script: at('quit', { stall: true }) }, [hostC]: {} },
      { limits: { connectionsMax: 1 } },
    );
    for (const domain of ['single.test', 'other.test', 'single.test']) {
      expect((await send(provider, `a@${domain}`)).kind).toBe('accepted');
    }
    expect([hostA, hostC].map((address) => world.at(address).counts.connections)).toEqual([2, 1]);
    await allReadsDone();
    expect([hostA, hostC].map((address) => world.at(address).counts.openConnections)).toEqual([1, 0]);
  });

  test('beyond the first take the place of none that was used within the last second', async () => {
    const { provider, world } = await arrange(
      { [hostA]: {}, [hostC]: { script: at('content', { stall: true }) } },
      { limits: { connectionsMax: 3 } },
    );
    expect((await send(provider, 'a@single.test')).kind).toBe('accepted');
    const reached = world.at(hostC).reached('content');
    const stalled = send(provider, 'a@other.test');
    await reached;
    const waiting = [send(provider, 'b@other.test')];
    await allReadsDone();
    expect(world.at(hostC).counts.connections).toBe(1);
    world.clock.advance(1_000);
    waiting.push(send(provider, 'c@other.test'));
    expect(kindsOf(await Promise.all(waiting))).toEqual({ accepted: 2 });
    expect([hostA, hostC].map((address) => world.at(address).counts.openConnections)).toEqual([0, 2]);
    await advanceUntil(world, stalled);
  });

  test('that are all busy elsewhere leave a hand-off to come back later, and it was not tried', async () => {
    const { provider, world } = await arrange(
      { [hostA]: { script: at('content', { stall: true }) }, [hostC]: {} },
      { limits: { connectionsMax: 1 } },
    );
    const reached = world.at(hostA).reached('content');
    const stalled = send(provider, 'a@single.test');
    await reached;
    expect(await send(provider, 'a@other.test')).toMatchObject({ kind: 'postponed', retryAfterMs: 250 });
    expect(world.at(hostC).counts.connections).toBe(0);
    await allReadsDone();
    world.clock.advance(300_000);
    expect((await stalled).kind).toBe('unknown');
  });

  test('to one destination leave room for others, although it could use them all', async () => {
    const stall: Script = ({ phase }) => (phase === 'content' ? { stall: true } : undefined);
    const { provider, world } = await arrange(
      { [hostA]: { script: stall }, [hostC]: {} },
      { limits: { connectionsMax: 6 } },
    );
    const busy = sendMany(provider, 20, 'single.test');
    await untilTrue(() => world.at(hostA).counts.openConnections === 3);
    await allReadsDone();
    // As many as are left for all others.
    expect(world.at(hostA).counts.openConnections).toBe(3);
    expect((await send(provider, 'a@other.test')).kind).toBe('accepted');
    await advanceUntil(world, busy);
  });
});

async function untilTrue(isSo: () => boolean): Promise<void> {
  while (!isSo()) await new Promise((resolve) => setImmediate(resolve));
}

describe('a slow destination', () => {
  test('holds half of the places, and others go through', async () => {
    const stall: Script = ({ phase }) => (phase === 'content' ? { stall: true } : undefined);
    const { provider, world } = await arrange(
      { [hostA]: { script: stall }, [hostC]: {} },
      { limits: { placesMax: 64, connectionsPerDestinationMax: 1 } },
    );
    const reached = world.at(hostA).reached('content');
    const first = send(provider, 'first@single.test');
    await reached;
    const settled: SendOutcome[] = [];
    const slow = Array.from({ length: 63 }, async (_, number) => {
      settled.push(await send(provider, `r${number}@single.test`));
    });
    await untilTrue(() => settled.length > 0);
    await allReadsDone();
    // One is under way, 32 wait, 31 places are left.
    expect(kindsOf(settled)).toEqual({ postponed: 31 });
    expect(kindsOf(await sendMany(provider, 16, 'other.test'))).toEqual({ accepted: 16 });
    const retries = settled.map((outcome) => (outcome.kind === 'postponed' ? outcome.retryAfterMs : 0));
    expect([...retries].sort((a, b) => a - b)).toEqual(retries);
    expect(retries[0]).toBeGreaterThanOrEqual(250);
    expect(retries.at(-1)).toBeLessThanOrEqual(60_000);
    await advanceUntil(world, Promise.all([first, ...slow]));
  });

  test('is come back to at the pace at which it takes messages', async () => {
    let isAsked: () => void = () => undefined;
    let answer: ((action: undefined) => void) | null = null;
    const { provider, world } = await arrange(
      {
        [hostA]: {
          script: ({ phase }) =>
            phase === 'content'
              ? new Promise((resolve) => {
                  answer = resolve;
                  isAsked();
                })
              : undefined,
        },
      },
      { limits: { placesMax: 8, connectionsPerDestinationMax: 1 } },
    );
    const begin = async (recipient: string) => {
      const asked = new Promise<void>((resolve) => {
        isAsked = resolve;
      });
      const sending = send(provider, recipient);
      await asked;
      return { sending };
    };
    for (let number = 0; number < 40; number += 1) {
      const { sending } = await begin('a@single.test');
      world.clock.advance(1_000);
      answer!(undefined);
      await sending;
    }
    const { sending } = await begin('a@single.test');
    const controller = new AbortController();
    const retries: number[] = [];
    const others = Array.from({ length: 7 }, async (_, number) => {
      const outcome = await send(provider, `r${number}@single.test`, { signal: controller.signal });
      if (outcome.kind === 'postponed') retries.push(outcome.retryAfterMs);
    });
    await untilTrue(() => retries.length === 3);
    // Four wait, so that the next one would have its turn in about five seconds.
    expect(retries.map((retryAfterMs) => Math.round(retryAfterMs / 1_000))).toEqual([5, 6, 7]);
    controller.abort(new Error('enough'));
    await Promise.allSettled(others);
    answer!(undefined);
    expect((await sending).kind).toBe('accepted');
  });

  test('that does not even greet takes one connection, and leaves places for other new ones', async () => {
    const { provider, world } = await arrange(
      { [hostA]: { script: always('connect', { stall: true }) }, [hostC]: {} },
      { limits: { placesMax: 60 } },
    );
    const settled: SendOutcome[] = [];
    const slow = Array.from({ length: 60 }, async (_, number) => {
      settled.push(await send(provider, `r${number}@single.test`));
    });
    await untilTrue(() => settled.length > 0);
    await allReadsDone();
    expect(kindsOf(settled)).toEqual({ postponed: 30 });
    expect(kindsOf(await sendMany(provider, 10, 'other.test'))).toEqual({ accepted: 10 });
    expect(world.at(hostA).counts.connections).toBe(1);
    await advanceUntil(world, Promise.all(slow));
  });

  test('is no stranger any more once it has been reached', async () => {
    const { provider, world } = await arrange(
      { [hostA]: { script: always('content', { stall: true }) }, [hostC]: {} },
      { limits: { placesMax: 40, connectionsPerDestinationMax: 1 } },
    );
    const reached = world.at(hostA).reached('content');
    const slow = sendMany(provider, 20, 'single.test');
    await reached;
    expect(kindsOf(await sendMany(provider, 10, 'other.test'))).toEqual({ accepted: 10 });
    await advanceUntil(world, slow);
  });

  test('is no reason to hold a small one back when many are dead', async () => {
    const dead = Array.from({ length: 40 }, (_, number) => `dead${number}.test`);
    const records: DnsRecords = Object.fromEntries([
      ...dead.map((name) => [name, { MX: [[10, `mx.${name}`]] }] as const),
      ...dead.map((name) => [`mx.${name}`, { A: [hostA] }] as const),
    ]) as DnsRecords;
    const { provider, world } = await arrange(
      { [hostA]: { script: always('connect', { stall: true }) }, [hostC]: {} },
      { records, limits: { placesMax: 40, connectionsMax: 100 } },
    );
    expect((await send(provider, 'first@other.test')).kind).toBe('accepted');
    const settled: SendOutcome[] = [];
    const slow = dead.map(async (name) => {
      settled.push(await send(provider, `a@${name}`));
    });
    await untilTrue(() => settled.length === 10);
    expect(kindsOf(settled)).toEqual({ postponed: 10 });
    expect(kindsOf(await sendMany(provider, 5, 'other.test'))).toEqual({ accepted: 5 });
    await advanceUntil(world, Promise.all(slow));
  });
});

describe('a destination that is away', () => {
  test('is left alone for half a minute, probed by one, and for twice as long if that fails', async () => {
    const { provider, world } = await arrange({ [hostC]: {} });
    const first = await sendMany(provider, 5, 'single.test');
    for (const outcome of first) {
      expect(outcome).toMatchObject({ kind: 'deferred', reason: 'other' });
      expect(outcome.reply?.diagnostic).toContain('ECONNREFUSED');
    }
    const sink = await world.open(hostA, { script: at('connect', { reply: '554 5.7.1 No' }) });
    // The same words, and no host was asked.
    expect(await send(provider, 'a@single.test')).toEqual(first[0]);
    expect((await send(provider, 'a@other.test')).kind).toBe('accepted');
    world.clock.advance(29_999);
    expect((await send(provider, 'a@single.test')).kind).toBe('deferred');
    expect(sink.counts.connections).toBe(0);

    world.clock.advance(1);
    const probed = await sendMany(provider, 5, 'single.test');
    expect(sink.counts.connections).toBe(1);
    expect(probed.map(({ reply }) => reply?.code ?? null).filter((code) => code === 554)).toHaveLength(1);
    world.clock.advance(59_999);
    expect(await send(provider, 'a@single.test')).toMatchObject({ reply: { code: 554 } });
    expect(sink.counts.connections).toBe(1);

    world.clock.advance(1);
    expect((await send(provider, 'a@single.test')).kind).toBe('accepted');
    expect(kindsOf(await sendMany(provider, 20, 'single.test'))).toEqual({ accepted: 20 });
  });

  test('does not speak for the provider, unless this machine has no way to anywhere', async () => {
    // To connect to a multicast address is refused by the system itself.
    const records: DnsRecords = { 'far.test': { A: ['224.0.0.1'], AAAA: ['ff02::1'] } };
    for (const [isRouted, reason] of [
      [true, 'other'],
      [false, 'provider_unavailable'],
    ] as const) {
      const { provider } = await arrange({}, { records, hasRoute: () => Promise.resolve(isRouted) });
      for (const _ of [1, 2]) {
        const outcome = await send(provider, 'a@far.test');
        expect(outcome).toMatchObject({ kind: 'deferred', reason });
        expect(outcome.reply?.diagnostic).toMatch(/ENETUNREACH|EINVAL|EADDRNOTAVAIL/);
      }
    }
  });
});

describe('a destination that has had enough', () => {
  const throttles: [SinkStep['phase'], string][] = [
    ['rcpt', '450 4.7.28 unusual rate of mail'],
    ['content', '421 4.7.0 too many messages'],
    ['mail', '421 4.3.2 Shutting down'],
    ['data', '550 5.7.1 rate limit exceeded'],
  ];

  test.each(throttles)(
    'and says so at %s (%s) is left alone, which costs no attempt',
    async (phase, reply) => {
      const { provider, world } = await arrange({ [hostA]: { script: at(phase, { reply }) } });
      const outcome = await send(provider, 'a@single.test');
      expect(['deferred', 'rejected']).toContain(outcome.kind);
      const { messages } = world.at(hostA);
      for (let round = 0; round < 3; round += 1) {
        const next = await send(provider, 'b@single.test');
        expect(next).toMatchObject({ kind: 'postponed', reply: { code: Number(reply.slice(0, 3)) } });
        expect(next.kind === 'postponed' && next.retryAfterMs).toBeGreaterThanOrEqual(30_000);
      }
      expect(messages).toHaveLength(0);
      world.clock.advance(30_000);
      expect((await send(provider, 'c@single.test')).kind).toBe('accepted');
      expect((await send(provider, 'd@single.test')).kind).toBe('accepted');
    },
  );

  test('is left alone by what waits already, too', async () => {
    const script = at('rcpt', { reply: '450 4.7.0 rate limited' });
    const { provider } = await arrange(
      { [hostA]: { script } },
      { limits: { connectionsPerDestinationMax: 1 } },
    );
    const outcomes = await sendMany(provider, 50, 'single.test');
    const kinds = kindsOf(outcomes);
    expect(kinds).toMatchObject({ deferred: 1 });
    expect(kinds.postponed).toBeGreaterThanOrEqual(48);
    expect(kinds.accepted ?? 0).toBeLessThanOrEqual(1);
  });

  test('gets half of the connections, and one more after fifty messages', async () => {
    const peaks: number[] = [];
    const { provider, world } = await arrange({
      [hostA]: { script: at('rcpt', { reply: '450 4.7.0 rate limited' }) },
    });
    const measure = async (count: number) => {
      const before = world.at(hostA).counts.connections;
      expect(kindsOf(await sendMany(provider, count, 'single.test'))).toEqual({ accepted: count });
      peaks.push(world.at(hostA).counts.connections - before);
      world.clock.advance(5_000);
      await world.quiet();
    };
    await send(provider, 'a@single.test');
    world.clock.advance(30_000);
    await world.quiet();
    expect((await send(provider, 'b@single.test')).kind).toBe('accepted');
    world.clock.advance(5_000);
    await world.quiet();
    // With the message before, the fiftieth success is the last of these.
    await measure(49);
    await measure(50);
    await measure(50);
    expect(peaks).toEqual([4, 5, 6]);
  });

  test('for one of its mailboxes takes the mail of the others', async () => {
    const reply = '450 4.2.1 The user you are trying to contact is receiving mail too quickly';
    const { provider } = await arrange({ [hostA]: { script: at('rcpt', { reply }) } });
    expect(await send(provider, 'a@single.test')).toMatchObject({ kind: 'deferred', reason: 'rate_limited' });
    expect((await send(provider, 'b@single.test')).kind).toBe('accepted');
  });

  test('of connections is served over those that it allows, and its spare host is left in peace', async () => {
    const script: Script = ({ phase, connection }) =>
      phase === 'connect' && connection > 2
        ? { reply: '421 4.7.0 Too many connections', thenClose: true }
        : undefined;
    const { provider, world } = await arrange({ [hostA]: { script }, [hostB]: {} });
    expect(kindsOf(await sendMany(provider, 100, 'example.test'))).toEqual({ accepted: 100 });
    expect(world.at(hostB).counts.connections).toBe(0);
  });

  test('of connections from the first on puts off what came, and postpones what follows', async () => {
    const script = always('connect', { reply: '421 4.7.0 Too many connections' });
    const { provider, world } = await arrange({ [hostA]: { script } });
    expect(await send(provider, 'a@single.test')).toMatchObject({ kind: 'deferred', reason: 'rate_limited' });
    expect((await send(provider, 'b@single.test')).kind).toBe('postponed');
    expect(world.at(hostA).counts.connections).toBe(1);
  });
});

describe('the end', () => {
  test('an abort frees at once what asks DNS, what waits for a connection, and what waits for an answer', async () => {
    const { provider, world } = await arrange(
      {
        [hostA]: { script: always('connect', { stall: true }) },
        [hostC]: { script: always('rcpt', { stall: true }) },
      },
      { limits: { connectionsPerDestinationMax: 1 } },
    );
    world.dns.fail('silent.test', 'silent');
    const controller = new AbortController();
    const reason = new Error('shutting down');
    const reached = Promise.all([world.at(hostA).reached('connect'), world.at(hostC).reached('rcpt')]);
    const sending = ['silent.test', 'single.test', 'single.test', 'other.test', 'other.test'].map((domain) =>
      send(provider, `a@${domain}`, { signal: controller.signal }),
    );
    await reached;
    controller.abort(reason);
    for (const each of sending) await expect(each).rejects.toBe(reason);
    // The lookup ends by itself.
    await provider.close();
    world.resolver.close();
    await allReadsDone();
  });

  test('an abort in a probe does not leave the destination alone for good', async () => {
    const { provider, world } = await arrange({ [hostC]: {} });
    await send(provider, 'a@single.test');
    const sink = await world.open(hostA, { script: at('rcpt', { stall: true }) });
    world.clock.advance(30_000);
    const controller = new AbortController();
    const reached = sink.reached('rcpt');
    const probing = send(provider, 'b@single.test', { signal: controller.signal });
    await reached;
    controller.abort(new Error('stopped'));
    await expect(probing).rejects.toThrow('stopped');
    expect((await send(provider, 'c@single.test')).kind).toBe('accepted');
  });

  test('closing carries through what is still asking DNS', async () => {
    const { provider, world } = await arrange({ [hostA]: {}, [hostC]: {} });
    const sending = [send(provider, 'a@single.test'), send(provider, 'a@other.test')];
    await provider.close();
    expect((await Promise.all(sending)).map(({ kind }) => kind)).toEqual(['accepted', 'accepted']);
    await world.quiet();
    expect(await send(provider, 'b@single.test')).toMatchObject({ reason: 'provider_unavailable' });
  });

  test('destinations that are not used any more are forgotten, and busy ones are not', async () => {
    const records: DnsRecords = Object.fromEntries(
      Array.from({ length: 10 }, (_, number) => [`d${number}.test`, { A: [`127.0.2.${number + 1}`] }]),
    );
    const { provider, world } = await arrange(
      { [hostA]: { script: at('content', { stall: true }) } },
      { records, limits: { destinationsMax: 2, connectionsPerDestinationMax: 1 } },
    );
    const reached = world.at(hostA).reached('content');
    const stalled = send(provider, 'a@single.test');
    await reached;
    for (let number = 0; number < 10; number += 1) {
      expect((await send(provider, `a@d${number}.test`)).kind).toBe('deferred');
    }
    // Its pause has been forgotten with it.
    const back = await world.open('127.0.2.1');
    expect((await send(provider, 'a@d0.test')).kind).toBe('accepted');
    expect(back.counts.connections).toBe(1);
    const waiting = send(provider, 'b@single.test');
    await allReadsDone();
    expect(world.at(hostA).counts.connections).toBe(1);
    world.clock.advance(300_000);
    expect((await stalled).kind).toBe('unknown');
    expect((await waiting).kind).toBe('accepted');
  });

  test('hand-offs beyond all measure are put off', async () => {
    const { provider } = await arrange({ [hostA]: {} }, { limits: { placesMax: 8 } });
    const kinds = kindsOf(await sendMany(provider, 40, 'single.test'));
    expect(kinds.deferred).toBe(24);
  });
});
