import { createSocket } from 'node:dgram';
import { EventEmitter, once } from 'node:events';
import { createServer } from 'node:net';
import type { AddressInfo, Socket as TcpSocket } from 'node:net';
import { networkInterfaces } from 'node:os';
import { RECURSION_AVAILABLE, TRUNCATED_RESPONSE, decode, encode } from 'dns-packet';
import type { Answer, Packet } from 'dns-packet';
import { describe, expect, it, onTestFinished } from 'vitest';
import { startDnsServer } from '../../../test/support/dns-server.ts';
import type { DnsRecords, DnsServerOptions, TestDnsServer } from '../../../test/support/dns-server.ts';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import type { ManualClock } from '../../../test/support/manual-clock.ts';
import type { Clock } from '../clock.ts';
import { createResolver } from './dns.ts';
import type { Resolver, ResolverOptions } from './dns.ts';

const noSuchDomain = { kind: 'absent', reason: 'no_such_domain' };
const noSuchRecord = { kind: 'absent', reason: 'no_such_record' };
const found = (...records: unknown[]) => ({ kind: 'found', records });
const failedBecause = (reason: string, detail: unknown = expect.any(String)) => ({
  kind: 'failed',
  reason,
  detail,
});

function open(
  servers: readonly string[],
  options: Partial<ResolverOptions> = {},
): { resolver: Resolver; clock: ManualClock } {
  const clock = createManualClock();
  const resolver = createResolver({ servers, clock, ...options });
  onTestFinished(() => {
    resolver.close();
  });
  return { resolver, clock };
}

async function serve(records: DnsRecords, options?: DnsServerOptions): Promise<TestDnsServer> {
  const server = await startDnsServer(records, options);
  onTestFinished(() => server.stop());
  return server;
}

/** A server and a resolver that asks it. */
async function begin(records: DnsRecords, options?: DnsServerOptions) {
  const server = await serve(records, options);
  return { server, ...open([server.address]) };
}

type Peer = { address: string; queries: Buffer[] };

/** A UDP server that answers as a test likes, also wrongly. */
async function startPeer(
  respond: (query: Buffer, send: (reply: Buffer) => void, clientPort: number) => void,
  { host = '127.0.0.1', port = 0 } = {},
): Promise<Peer> {
  const socket = createSocket(host === '::1' ? 'udp6' : 'udp4');
  await new Promise<void>((resolve) => {
    socket.bind(port, host, resolve);
  });
  const queries: Buffer[] = [];
  socket.on('message', (query, client) => {
    queries.push(query);
    const send = (reply: Buffer) => {
      socket.send(reply, client.port, client.address);
    };
    respond(query, send, client.port);
  });
  onTestFinished(async () => {
    await new Promise<void>((resolve) => {
      socket.close(resolve);
    });
  });
  const bound = socket.address().port;
  return { address: host === '::1' ? `[::1]:${bound}` : `${host}:${bound}`, queries };
}

const forgedAnswers = [addressRecord('a.test', '192.0.2.66')];

function forged(query: Buffer): Buffer {
  return replyTo(query, { answers: forgedAnswers });
}

function withId(message: Buffer, id: number): Buffer {
  message.writeUInt16BE(id, 0);
  return message;
}

function withoutResponseFlag(message: Buffer): Buffer {
  message.writeUInt16BE(message.readUInt16BE(2) & 0x7fff, 2);
  return message;
}

/** A peer that says TC over UDP, and hands over the connection that the resolver then opens. */
async function startTcpPeer(serveConnection: (connection: TcpSocket, query: Buffer) => void): Promise<Peer> {
  const server = createServer((connection) => {
    connection.on('error', () => connection.destroy());
    connection.once('data', (query: Buffer) => {
      serveConnection(connection, query.subarray(2));
    });
    onTestFinished(() => {
      connection.destroy();
    });
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  onTestFinished(() => {
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return startPeer(
    (query, send) => {
      send(replyTo(query, { flags: TRUNCATED_RESPONSE }));
    },
    { port },
  );
}

function replyTo(query: Buffer, content: Packet = {}, rcode = 0): Buffer {
  const { id, questions } = decode(query);
  const flags = RECURSION_AVAILABLE | (content.flags ?? 0) | rcode;
  return encode({ id, questions, ...content, flags, type: 'response' });
}

function addressRecord(name: string, data: string, ttl = 300): Answer {
  return { type: 'A', name, ttl, data };
}

function alias(name: string, data: string, ttl = 300): Answer {
  return { type: 'CNAME', name, ttl, data };
}

function startOfAuthority(name: string, ttl: number, minimum: number): Answer {
  return { type: 'SOA', name, ttl, data: { mname: 'ns.test', rname: 'root.test', minimum } };
}

function chainOf(aliases: number): DnsRecords {
  const records: DnsRecords = { [`n${aliases}.test`]: { A: ['192.0.2.1'] } };
  for (let index = 0; index < aliases; index += 1) {
    records[`n${index}.test`] = { CNAME: `n${index + 1}.test` };
  }
  return records;
}

async function passTurns(turns: number): Promise<void> {
  for (let left = turns; left > 0; left -= 1) await new Promise((resolve) => setImmediate(resolve));
}

/** Lets so many tries run into their time-out, one after another; each waits beside the limit of its lookup. */
async function letTimeOut(clock: ManualClock, tries: number): Promise<void> {
  for (let left = tries; left > 0; left -= 1) {
    await clock.whenWaiting(2);
    clock.advance(2_000);
  }
}

describe('a lookup', () => {
  it('gives the records of each type, names in lower case and without a final dot', async () => {
    const { resolver } = await begin({
      'a.test': {
        A: ['192.0.2.1', '192.0.2.2'],
        AAAA: ['2001:db8::1'],
        MX: [
          [20, 'MX2.A.test.'],
          [10, 'mx1.a.test'],
        ],
        TXT: ['v=spf1 -all', 'other'],
      },
      'w.a.test': { CNAME: 'A.test' },
      '1.2.0.192.in-addr.arpa': { PTR: ['Host.a.test'] },
      '1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa': { PTR: ['six.a.test'] },
    });
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1', '192.0.2.2'));
    expect(await resolver.a('A.TEST.')).toEqual(found('192.0.2.1', '192.0.2.2'));
    expect(await resolver.aaaa('a.test')).toEqual(found('2001:db8::1'));
    expect(await resolver.mx('a.test')).toEqual(
      found({ preference: 20, exchange: 'mx2.a.test' }, { preference: 10, exchange: 'mx1.a.test' }),
    );
    expect(await resolver.txt('a.test')).toEqual(found('v=spf1 -all', 'other'));
    expect(await resolver.cname('w.a.test')).toEqual(found('a.test'));
    expect(await resolver.ptr('192.0.2.1')).toEqual(found('host.a.test'));
    expect(await resolver.ptr('2001:db8::1')).toEqual(found('six.a.test'));
  });

  it('shows the null MX as one record without exchange', async () => {
    const { resolver } = await begin({ 'a.test': { MX: [[0, '']] } });
    expect(await resolver.mx('a.test')).toEqual(found({ preference: 0, exchange: '' }));
  });

  it('joins the strings of a TXT record, and reads them as UTF-8 without NUL', async () => {
    const key = `v=DKIM1; k=rsa; p=${'A'.repeat(700)}`;
    const { resolver } = await begin({
      'a.test': { TXT: [key, ['one ', 'two'], '', 'grün', 'a\0b'] },
    });
    expect(await resolver.txt('a.test')).toEqual(found(key, 'one two', '', 'grün', 'a\ufffdb'));
  });

  it('tells a name that does not exist from one without such a record', async () => {
    const { resolver } = await begin({ 'a.test': { A: ['192.0.2.1'] }, 'b.c.test': { A: ['192.0.2.1'] } });
    expect(await resolver.mx('b.test')).toEqual(noSuchDomain);
    expect(await resolver.mx('a.test')).toEqual(noSuchRecord);
    expect(await resolver.a('c.test')).toEqual(noSuchRecord);
    expect(await resolver.ptr('192.0.2.9')).toEqual(noSuchDomain);
  });

  it.each(['', '.', 'a..test', `${'a'.repeat(64)}.test`, `${'a.'.repeat(127)}a`, 'bücher.test', 'a\0.test'])(
    'of %j asks no server, for there is no such domain',
    async (name) => {
      const { resolver, server } = await begin({});
      expect(await resolver.a(name)).toEqual(noSuchDomain);
      expect(await resolver.ptr(name)).toEqual(noSuchDomain);
      expect(server.queries).toEqual([]);
    },
  );

  it('looks at no record of another name or type', async () => {
    const peer = await startPeer((query, send) => {
      send(
        replyTo(query, {
          answers: [
            addressRecord('b.test', '192.0.2.66'),
            { type: 'TXT', name: 'a.test', ttl: 300, data: 'text' },
            addressRecord('a.test', '192.0.2.1'),
          ],
          additionals: [addressRecord('a.test', '192.0.2.67')],
        }),
      );
    });
    const { resolver } = open([peer.address]);
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
  });

  it('leaves out a record that holds no domain name, and fails if there is no other', async () => {
    const exchanges = ['mx one.test', 'mx.test\r\nQUIT'];
    const peer = await startPeer((query, send) => {
      const answers = exchanges.map<Answer>((exchange) => ({
        type: 'MX',
        name: 'a.test',
        ttl: 300,
        data: { preference: 10, exchange },
      }));
      send(replyTo(query, { answers }));
    });
    const { resolver } = open([peer.address]);
    expect(await resolver.mx('a.test')).toEqual(failedBecause('malformed'));
    exchanges.push('mx.test');
    expect(await resolver.mx('a.test', { isFresh: true })).toEqual(
      found({ preference: 10, exchange: 'mx.test' }),
    );
  });

  it('of a name with thousands of records gives a hundred', async () => {
    const addresses = Array.from({ length: 2_000 }, (_, index) => `10.0.${index >> 8}.${index & 255}`);
    const { resolver } = await begin({ 'a.test': { A: addresses } });
    expect(await resolver.a('a.test')).toEqual(found(...addresses.slice(0, 100)));
  });
});

describe('aliases', () => {
  it('are followed within one answer', async () => {
    const { resolver, server } = await begin(chainOf(3));
    expect(await resolver.a('n0.test')).toEqual(found('192.0.2.1'));
    expect(server.queries.length).toBe(1);
  });

  it('are followed by asking on where the answer ends with one', async () => {
    const { resolver, server } = await begin(chainOf(3), { followsAliases: false });
    expect(await resolver.a('n0.test')).toEqual(found('192.0.2.1'));
    expect(server.queries.map(({ name }) => name)).toEqual(['n0.test', 'n1.test', 'n2.test', 'n3.test']);
  });

  it.each([true, false])('are followed eight times and no more (all in one answer: %s)', async (together) => {
    const { resolver } = await begin(chainOf(9), { followsAliases: together });
    expect(await resolver.a('n1.test')).toEqual(found('192.0.2.1'));
    expect(await resolver.a('n0.test')).toEqual(
      failedBecause('malformed', expect.stringContaining('more than 8')),
    );
  });

  it.each([true, false])('in a circle end as a failure (all in one answer: %s)', async (together) => {
    const { resolver, server } = await begin(
      { 'a.test': { CNAME: 'b.test' }, 'b.test': { CNAME: 'a.test' }, 'self.test': { CNAME: 'self.test' } },
      { followsAliases: together },
    );
    const circle = failedBecause('malformed', expect.stringContaining('circle'));
    expect(await resolver.a('a.test')).toEqual(circle);
    expect(await resolver.a('self.test')).toEqual(circle);
    expect(server.queries.length).toBeLessThanOrEqual(4);
  });

  it('to a name without such a record, or to none at all, end as absence', async () => {
    const { resolver, server } = await begin({
      'a.test': { CNAME: 'b.test' },
      'b.test': { A: ['192.0.2.1'] },
      'c.test': { CNAME: 'gone.test' },
    });
    expect(await resolver.mx('a.test')).toEqual(noSuchRecord);
    expect(await resolver.mx('c.test')).toEqual(noSuchDomain);
    expect(server.queries.length).toBe(2);
  });

  it('are asked on where the absence in the answer speaks for another zone', async () => {
    const peer = await startPeer((query, send) => {
      const isFirst = decode(query).questions?.[0]?.name === 'a.test';
      send(
        isFirst
          ? replyTo(query, {
              answers: [alias('a.test', 'b.other')],
              authorities: [startOfAuthority('test', 60, 60)],
            })
          : replyTo(query, { answers: [addressRecord('b.other', '192.0.2.1')] }),
      );
    });
    const { resolver } = open([peer.address]);
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
  });

  it('are themselves given only where they are asked for, and then the first alone', async () => {
    const { resolver } = await begin(chainOf(3));
    expect(await resolver.cname('n0.test')).toEqual(found('n1.test'));
    expect(await resolver.cname('n3.test')).toEqual(noSuchRecord);
  });
});

describe('failures', () => {
  it.each([
    ['SERVFAIL', 'server_failure'],
    ['REFUSED', 'refused'],
    ['garbage', 'malformed'],
  ] as const)('of a server that answers %s are reported as %s, never as absence', async (how, reason) => {
    const { resolver, server } = await begin({});
    server.fail('a.test', how);
    expect(await resolver.a('a.test')).toEqual(
      failedBecause(reason, expect.stringContaining(server.address)),
    );
    expect(server.queries.length).toBe(2);
  });

  it('of a silent server are reported as timeout, after two tries', async () => {
    const { resolver, server, clock } = await begin({});
    server.fail('a.test', 'silent');
    const lookup = resolver.a('a.test');
    await letTimeOut(clock, 2);
    expect(await lookup).toEqual(failedBecause('timeout', `${server.address} did not answer within 2000 ms`));
  });

  it('of a port where nothing listens are reported at once', async () => {
    const server = await startDnsServer();
    await server.stop();
    const { resolver } = open([server.address]);
    expect(await resolver.a('a.test')).toEqual(
      failedBecause('timeout', expect.stringContaining('ECONNREFUSED')),
    );
  });

  it.each(['SERVFAIL', 'REFUSED', 'garbage', 'silent'] as const)(
    'of one server (%s) are made good by the next',
    async (how) => {
      const [first, second] = [await serve({}), await serve({ 'a.test': { A: ['192.0.2.1'] } })];
      first.fail('a.test', how);
      const { resolver, clock } = open([first.address, second.address]);
      const lookup = resolver.a('a.test');
      await first.whenAsked(1);
      if (how === 'silent') clock.advance(2_000);
      expect(await lookup).toEqual(found('192.0.2.1'));
      expect(first.queries.length).toBe(1);
    },
  );

  it('do not make the next server be asked when the first knows that there is nothing', async () => {
    const [first, second] = [await serve({}), await serve({ 'a.test': { A: ['192.0.2.1'] } })];
    const { resolver } = open([first.address, second.address]);
    expect(await resolver.a('a.test')).toEqual(noSuchDomain);
    expect(second.queries).toEqual([]);
  });

  it('of all servers name each, and what a server said goes before silence', async () => {
    const [first, second] = [await serve({}), await serve({})];
    first.fail('a.test', 'silent');
    second.fail('a.test', 'REFUSED');
    const { resolver, clock } = open([first.address, second.address]);
    const lookup = resolver.a('a.test');
    for (const round of [1, 2]) {
      await first.whenAsked(round);
      clock.advance(2_000);
    }
    const answer = await lookup;
    expect(answer).toEqual(failedBecause('refused', expect.stringContaining(first.address)));
    expect(answer).toEqual(failedBecause('refused', expect.stringContaining(second.address)));
  });

  it('of a silent server put it after the others for half a minute', async () => {
    const records = {
      'a.test': { A: ['192.0.2.1'] },
      'b.test': { A: ['192.0.2.2'] },
      'c.test': { A: ['192.0.2.3'] },
    };
    const [first, second] = [await serve(records), await serve(records)];
    first.fail('a.test', 'silent');
    const { resolver, clock } = open([first.address, second.address]);
    const lookup = resolver.a('a.test');
    await first.whenAsked(1);
    clock.advance(2_000);
    await lookup;
    expect(await resolver.a('b.test')).toEqual(found('192.0.2.2'));
    clock.advance(30_000);
    expect(await resolver.a('c.test')).toEqual(found('192.0.2.3'));
    expect(second.queries.map(({ name }) => name)).toEqual(['a.test', 'b.test']);
  });

  it('of any number of servers are over after five time-outs', async () => {
    const silent = await Promise.all(Array.from({ length: 6 }, () => startPeer(() => undefined)));
    const { resolver, clock } = open(silent.map(({ address }) => address));
    const lookup = resolver.a('a.test');
    await letTimeOut(clock, 5);
    expect(await lookup).toEqual(
      failedBecause('timeout', expect.stringContaining('no answer within 10000 ms')),
    );
  });

  it('are reported where a server only points to others instead of asking them', async () => {
    const peer = await startPeer((query, send) => {
      const { id, questions } = decode(query);
      const authorities: Answer[] = [{ type: 'NS', name: 'test', ttl: 300, data: 'ns.test' }];
      send(encode({ type: 'response', id, questions, authorities }));
    });
    const { resolver } = open([peer.address]);
    expect(await resolver.a('a.test')).toEqual(
      failedBecause('server_failure', expect.stringContaining('no recursive server')),
    );
  });
});

describe('the wire', () => {
  it.each<[string, (query: Buffer) => Buffer]>([
    ['another id', (query) => withId(forged(query), query.readUInt16BE(0) ^ 1)],
    [
      'another question',
      (query) =>
        replyTo(query, {
          questions: [{ type: 'A', name: 'b.test' }],
          answers: [addressRecord('a.test', '192.0.2.66')],
        }),
    ],
    [
      'another type of question',
      (query) =>
        replyTo(query, {
          questions: [{ type: 'AAAA', name: 'a.test' }],
          answers: [addressRecord('a.test', '192.0.2.66')],
        }),
    ],
    ['no question', (query) => replyTo(query, { questions: [], answers: forgedAnswers })],
    ['the flags of a query', (query) => withoutResponseFlag(forged(query))],
    ['few octets', (query) => forged(query).subarray(0, 11)],
    ['no octets', () => Buffer.alloc(0)],
  ])('carries a datagram with %s without effect', async (_what, forge) => {
    const peer = await startPeer((query, send) => {
      send(forge(query));
      send(replyTo(query, { answers: [addressRecord('a.test', '192.0.2.1')] }));
    });
    const { resolver } = open([peer.address]);
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
    expect(peer.queries.length).toBe(1);
  });

  it('carries a datagram of another socket without effect', async () => {
    const stranger = createSocket('udp4');
    onTestFinished(() => {
      stranger.close();
    });
    const peer = await startPeer((query, send, clientPort) => {
      // The very datagram that would count if it came from the server.
      stranger.send(forged(query), clientPort, '127.0.0.1', () => {
        send(replyTo(query, { answers: [addressRecord('a.test', '192.0.2.1')] }));
      });
    });
    const { resolver } = open([peer.address]);
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
  });

  it('shows a new id at each try', async () => {
    const peer = await startPeer((query, send) => {
      send(replyTo(query));
    });
    const { resolver } = open([peer.address]);
    await Promise.all(Array.from({ length: 100 }, (_, index) => resolver.a(`a${index}.test`)));
    const ids = new Set(peer.queries.map((query) => query.readUInt16BE(0)));
    expect(ids.size).toBeGreaterThan(90);
  });

  it('takes the question back in another case', async () => {
    const peer = await startPeer((query, send) => {
      const answers = [addressRecord('A.TEST', '192.0.2.1')];
      send(replyTo(query, { questions: [{ type: 'A', name: 'A.tesT' }], answers }));
    });
    const { resolver } = open([peer.address]);
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
  });

  it('is tried without EDNS on a server that does not know it', async () => {
    const peer = await startPeer((query, send) => {
      const hasEdns = decode(query).additionals?.length !== 0;
      const formatError = Buffer.concat([query.subarray(0, 2), Buffer.from('80010000000000000000', 'hex')]);
      send(hasEdns ? formatError : replyTo(query, { answers: [addressRecord('a.test', '192.0.2.1')] }));
    });
    const { resolver } = open([peer.address]);
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
    expect(peer.queries.length).toBe(2);
  });

  it('announces datagrams that no network splits, and asks for recursion', async () => {
    const peer = await startPeer((query, send) => {
      send(replyTo(query));
    });
    const { resolver } = open([peer.address]);
    await resolver.a('a.test');
    const { flag_rd: wantsRecursion, additionals } = decode(peer.queries[0]!);
    expect(wantsRecursion).toBe(true);
    expect(additionals).toEqual([expect.objectContaining({ type: 'OPT', udpPayloadSize: 1_232 })]);
  });

  it.runIf(
    Object.values(networkInterfaces())
      .flat()
      .some((held) => held?.address === '::1'),
  )('leads to a server with an IPv6 address', async () => {
    const peer = await startPeer(
      (query, send) => {
        send(replyTo(query, { answers: [addressRecord('a.test', '192.0.2.1')] }));
      },
      { host: '::1' },
    );
    const { resolver } = open([peer.address]);
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
  });
});

describe('TCP', () => {
  it('brings an answer that is too large for a datagram', async () => {
    const texts = Array.from({ length: 20 }, (_, index) => `${index}:${'x'.repeat(200)}`);
    const { resolver, server } = await begin({ 'a.test': { TXT: texts } });
    expect(await resolver.txt('a.test')).toEqual(found(...texts));
    expect(server.queries.map(({ transport }) => transport)).toEqual(['udp', 'tcp']);
  });

  it('brings the answer whenever the datagram says that it is cut', async () => {
    const { resolver, server } = await begin({ 'a.test': { A: ['192.0.2.1'] } });
    server.fail('a.test', 'truncated');
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
  });

  it('brings an answer that comes octet by octet', async () => {
    const peer = await startTcpPeer((connection, query) => {
      const reply = replyTo(query, { answers: [addressRecord('a.test', '192.0.2.1')] });
      const octets = [0, reply.length, ...reply];
      connection.setNoDelay(true);
      const sendNext = () => {
        const octet = octets.shift();
        if (octet === undefined) return;
        // The client reads in the turns between, for it lives in this process too.
        connection.write(Buffer.from([octet]), () => {
          void passTurns(3).then(sendNext);
        });
      };
      sendNext();
    });
    const { resolver } = open([peer.address]);
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
  });

  it('is over with its answer, and with the resolver', async () => {
    let reportClosed: () => void = () => undefined;
    const peer = await startTcpPeer((connection, query) => {
      connection.on('close', () => {
        reportClosed();
      });
      const isAnswered = decode(query).questions?.[0]?.name === 'a.test';
      const reply = replyTo(query, { answers: [addressRecord('a.test', '192.0.2.1')] });
      if (isAnswered) connection.write(Buffer.concat([Buffer.from([0, reply.length]), reply]));
      else resolver.close();
    });
    const { resolver } = open([peer.address]);
    for (const [name, kind] of [
      ['a.test', 'found'],
      ['b.test', 'failed'],
    ] as const) {
      const closed = new Promise<void>((resolve) => {
        reportClosed = resolve;
      });
      expect((await resolver.a(name)).kind).toBe(kind);
      await closed;
    }
  });

  it.each<[string, string, (connection: TcpSocket, query: Buffer) => void]>([
    ['is closed at once', 'server_failure', (connection) => connection.end()],
    ['is closed in the middle', 'server_failure', (connection) => connection.end(Buffer.from([1, 0, 7]))],
    ['is reset', 'timeout', (connection) => connection.resetAndDestroy()],
    [
      'brings the answer to another question',
      'malformed',
      (connection, query) => {
        const reply = withId(forged(query), query.readUInt16BE(0) ^ 1);
        connection.write(Buffer.concat([Buffer.from([0, reply.length]), reply]));
      },
    ],
    ['brings an empty answer', 'malformed', (connection) => connection.write(Buffer.from([0, 0]))],
    [
      'brings an answer that ends in the middle of a record',
      'malformed',
      (connection, query) => {
        const reply = forged(query);
        connection.write(Buffer.concat([Buffer.from([0, reply.length - 3]), reply.subarray(0, -3)]));
      },
    ],
  ])('that %s is reported as %s', async (_what, reason, serveConnection) => {
    const peer = await startTcpPeer(serveConnection);
    const { resolver } = open([peer.address]);
    expect(await resolver.a('a.test')).toEqual(failedBecause(reason));
  });

  it('that never brings all of it is reported as timeout', async () => {
    let connections = 0;
    let reportConnection = () => undefined as void;
    const peer = await startTcpPeer((connection) => {
      connection.write(Buffer.from([0xff, 0xff, 1, 2, 3]));
      connections += 1;
      reportConnection();
    });
    const { resolver, clock } = open([peer.address]);
    const lookup = resolver.a('a.test');
    for (const count of [1, 2]) {
      if (connections < count) {
        await new Promise<void>((resolve) => {
          reportConnection = resolve;
        });
      }
      await clock.whenWaiting(2);
      clock.advance(2_000);
    }
    expect(await lookup).toEqual(failedBecause('timeout', expect.stringContaining('did not answer within')));
  });

  it('to a server that answers only over UDP is reported as timeout', async () => {
    const peer = await startPeer((query, send) => {
      send(replyTo(query, { flags: TRUNCATED_RESPONSE }));
    });
    const { resolver } = open([peer.address]);
    expect(await resolver.a('a.test')).toEqual(
      failedBecause('timeout', expect.stringContaining('ECONNREFUSED')),
    );
  });
});

describe('the cache', () => {
  it('keeps an answer for the time that the server gave, and no longer', async () => {
    const { resolver, server, clock } = await begin({ 'a.test': { A: ['192.0.2.1'] } });
    await resolver.a('a.test');
    server.set('a.test', { A: ['192.0.2.2'] });
    clock.advance(299_999);
    expect(await resolver.a('A.test.')).toEqual(found('192.0.2.1'));
    clock.advance(1);
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.2'));
    expect(server.queries.length).toBe(2);
  });

  it('keeps each type of a name for itself', async () => {
    const { resolver } = await begin({ 'a.test': { A: ['192.0.2.1'], TXT: ['text'] } });
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
    expect(await resolver.txt('a.test')).toEqual(found('text'));
    expect(await resolver.mx('a.test')).toEqual(noSuchRecord);
  });

  it.each([
    [
      'the least of all records on the way',
      [alias('a.test', 'b.test', 90), addressRecord('b.test', '192.0.2.1', 100)],
      90,
    ],
    [
      'the least of the records',
      [addressRecord('a.test', '192.0.2.1', 80), addressRecord('a.test', '192.0.2.2', 70)],
      70,
    ],
    ['no less than a second', [addressRecord('a.test', '192.0.2.1', 0)], 1],
    ['no more than an hour', [addressRecord('a.test', '192.0.2.1', 604_800)], 3_600],
    ['a second where the time is no time', [addressRecord('a.test', '192.0.2.1', 0xffffffff)], 1],
  ])('keeps records for %s', async (_what, answers, seconds) => {
    await expectLifetime((query) => replyTo(query, { answers }), seconds);
  });

  it.each([
    ['the minimum of the SOA', [startOfAuthority('test', 300, 40)], 40],
    ['the time of the SOA itself where that is less', [startOfAuthority('test', 30, 40)], 30],
    ['no less than a second', [startOfAuthority('test', 300, 0)], 1],
    ['no more than five minutes', [startOfAuthority('test', 86_400, 86_400)], 300],
    ['a minute where no SOA says how long', [], 60],
  ])('keeps an absence for %s', async (_what, authorities, seconds) => {
    await expectLifetime((query) => replyTo(query, { authorities }), seconds);
    await expectLifetime((query) => replyTo(query, { authorities }, 3), seconds);
  });

  it('keeps an absence after an alias no longer than the alias', async () => {
    const answers = [alias('a.test', 'b.test', 20)];
    const authorities = [startOfAuthority('test', 300, 300)];
    await expectLifetime((query) => replyTo(query, { answers, authorities }), 20);
  });

  it('keeps a failure for five seconds', async () => {
    const { resolver, server, clock } = await begin({ 'a.test': { A: ['192.0.2.1'] } });
    server.fail('a.test', 'SERVFAIL');
    await resolver.a('a.test');
    server.set('a.test', { A: ['192.0.2.1'] });
    clock.advance(4_999);
    expect(await resolver.a('a.test')).toEqual(failedBecause('server_failure'));
    clock.advance(1);
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
  });

  it('is passed by on demand, and then knows the newer answer', async () => {
    const { resolver, server } = await begin({ 'a.test': { A: ['192.0.2.1'] } });
    await resolver.a('a.test');
    server.remove('a.test');
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
    expect(await resolver.a('a.test', { isFresh: true })).toEqual(noSuchDomain);
    expect(await resolver.a('a.test')).toEqual(noSuchDomain);
    expect(server.queries.length).toBe(2);
  });

  it('does not lose an answer to a failure that came later', async () => {
    const { resolver, server } = await begin({ 'a.test': { A: ['192.0.2.1'] } });
    await resolver.a('a.test');
    server.fail('a.test', 'SERVFAIL');
    expect(await resolver.a('a.test', { isFresh: true })).toEqual(failedBecause('server_failure'));
    expect(await resolver.a('a.test')).toEqual(found('192.0.2.1'));
  });

  it('forgets what was not used for longest when it is full', async () => {
    const server = await serve({ 'a.test': { A: ['192.0.2.1'] }, 'b.test': {}, 'c.test': {} });
    const { resolver } = open([server.address], { cacheEntriesMax: 2 });
    for (const name of ['a.test', 'b.test', 'a.test', 'c.test', 'a.test', 'b.test']) await resolver.a(name);
    expect(server.queries.map(({ name }) => name)).toEqual(['a.test', 'b.test', 'c.test', 'b.test']);
  });
});

/** Expects that the answer to `a.test` is kept for so many seconds. */
async function expectLifetime(reply: (query: Buffer) => Buffer, seconds: number): Promise<void> {
  const peer = await startPeer((query, send) => {
    send(reply(query));
  });
  const { resolver, clock } = open([peer.address]);
  await resolver.a('a.test');
  clock.advance(seconds * 1_000 - 1);
  await resolver.a('a.test');
  expect(peer.queries.length).toBe(1);
  clock.advance(1);
  await resolver.a('a.test');
  expect(peer.queries.length).toBe(2);
}

describe('lookups at once', () => {
  it('of one name and type share a query, fresh or not', async () => {
    const { resolver, server } = await begin({ 'a.test': { A: ['192.0.2.1'] } });
    const answers = await Promise.all(
      Array.from({ length: 1_000 }, (_, index) => resolver.a('a.test', { isFresh: index % 2 === 0 })),
    );
    expect(new Set(answers.map((answer) => JSON.stringify(answer))).size).toBe(1);
    expect(server.queries.length).toBe(1);
  });

  it('are shared with nobody on demand, and what comes later shares the newest', async () => {
    const asked = new EventEmitter();
    const answers: (() => void)[] = [];
    const peer = await startPeer((query, send) => {
      const address = `192.0.2.${answers.length + 1}`;
      answers.push(() => {
        send(replyTo(query, { answers: [addressRecord('a.test', address)] }));
      });
      asked.emit('query');
    });
    const { resolver } = open([peer.address]);
    const first = resolver.a('a.test', { isFresh: true });
    await once(asked, 'query');
    const second = resolver.a('a.test', { isFresh: true, isUnshared: true });
    await once(asked, 'query');
    answers[0]!();
    expect(await first).toEqual(found('192.0.2.1'));
    const third = resolver.a('a.test', { isFresh: true });
    answers[1]!();
    expect(await Promise.all([second, third])).toEqual([found('192.0.2.2'), found('192.0.2.2')]);
    expect(peer.queries.length).toBe(2);
  });

  it('share a failure too, and the next one asks anew', async () => {
    const { resolver, server } = await begin({});
    server.fail('a.test', 'SERVFAIL');
    await Promise.all(Array.from({ length: 100 }, () => resolver.a('a.test')));
    expect(server.queries.length).toBe(2);
    server.set('a.test', { A: ['192.0.2.1'] });
    expect(await resolver.a('a.test', { isFresh: true })).toEqual(found('192.0.2.1'));
  });

  it('of many names are asked 256 at a time, and all are answered', async () => {
    let present = 0;
    let most = 0;
    const held: (() => void)[] = [];
    const peer = await startPeer((query, send) => {
      present += 1;
      most = Math.max(most, present);
      held.push(() => {
        present -= 1;
        send(replyTo(query, {}, 3));
      });
      if (held.length === 256 || peer.queries.length === 600) for (const release of held.splice(0)) release();
    });
    const { resolver } = open([peer.address]);
    const answers = await Promise.all(
      Array.from({ length: 600 }, (_, index) => resolver.a(`a${index}.test`)),
    );
    expect(answers.every(({ kind }) => kind === 'absent')).toBe(true);
    expect(most).toBe(256);
  });

  it('that are urgent are asked at once, also for a name that waits for its turn', async () => {
    const peer = await startPeer((query, send) => {
      if (decode(query).questions?.[0]?.name === 'urgent.test') send(replyTo(query, {}, 3));
    });
    const { resolver } = open([peer.address]);
    const lookups = Array.from({ length: 256 }, (_, index) => resolver.a(`a${index}.test`));
    lookups.push(resolver.a('urgent.test'));
    expect(await resolver.a('urgent.test', { isFresh: true, isUrgent: true })).toEqual(noSuchDomain);
    resolver.close();
    expect((await Promise.all(lookups)).every(({ kind }) => kind === 'failed')).toBe(true);
  });

  it('beyond what may wait are refused at once', async () => {
    const peer = await startPeer(() => undefined);
    const { resolver } = open([peer.address]);
    const lookups = Array.from({ length: 10_256 }, (_, index) => resolver.a(`a${index}.test`));
    expect(await resolver.a('last.test')).toEqual(failedBecause('timeout', 'too many lookups wait'));
    resolver.close();
    expect((await Promise.all(lookups)).every(({ kind }) => kind === 'failed')).toBe(true);
  });
});

/** A closed socket is let go of at the end of a turn of the event loop; the present one may be past that. */
async function countUdpSockets(): Promise<number> {
  await passTurns(2);
  return process.getActiveResourcesInfo().filter((kind) => kind === 'UDPWrap').length;
}

describe('a closed resolver', () => {
  it('has ended its lookups as failed, and leaves no socket and no timer', async () => {
    const manualClock = createManualClock();
    let timers = 0;
    const clock: Clock = {
      ...manualClock,
      after: (delayMs, callback) => {
        timers += 1;
        const cancel = manualClock.after(delayMs, callback);
        return () => {
          timers -= 1;
          cancel();
        };
      },
    };
    const server = await serve({});
    for (const name of ['a.test', 'b.test']) server.fail(name, 'silent');
    const socketsBefore = await countUdpSockets();
    const { resolver } = open([server.address], { clock });
    const lookups = [resolver.a('a.test'), resolver.mx('b.test')];
    await server.whenAsked(2);
    expect(await countUdpSockets()).toBe(socketsBefore + 2);

    resolver.close();
    const closed = failedBecause('timeout', 'the resolver was closed');
    expect(await Promise.all(lookups)).toEqual([closed, closed]);
    expect(await resolver.a('c.test')).toEqual(closed);
    expect(timers).toBe(0);
    expect(await countUdpSockets()).toBe(socketsBefore);
  });
});

describe('a resolver', () => {
  it('does not begin with a server address that is none', () => {
    const servers = ['127.0.0.1', 'localhost:53'];
    expect(() => createResolver({ servers, clock: createManualClock() })).toThrow('localhost:53');
  });

  it('takes the servers of the machine where none are given', () => {
    expect(() => open([])).not.toThrow();
  });
});
