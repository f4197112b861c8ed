import { createSocket } from 'node:dgram';
import type { Socket as UdpSocket } from 'node:dgram';
import { createServer } from 'node:net';
import type { AddressInfo, Server, Socket as TcpSocket } from 'node:net';
import {
  AUTHORITATIVE_ANSWER,
  RECURSION_AVAILABLE,
  RECURSION_DESIRED,
  TRUNCATED_RESPONSE,
  decode,
  encode,
} from 'dns-packet';
import type { Answer, DecodedPacket, Packet } from 'dns-packet';

/**
 * A DNS server for tests: it knows a few names, answers on loopback by UDP and TCP on one port, and fails on demand.
 * It follows aliases within its records as a recursive server does. A name that it does not know does not exist,
 * unless it stands above one that it knows.
 */

export type DnsNameRecords = {
  A?: string[];
  AAAA?: string[];
  MX?: [preference: number, exchange: string][];
  /** A text of more than 255 octets is split; a list is one record of exactly these strings. */
  TXT?: (string | string[])[];
  CNAME?: string;
  PTR?: string[];
};

/** By name, without a final dot; addresses by their full name, such as `1.0.0.127.in-addr.arpa`. */
export type DnsRecords = Record<string, DnsNameRecords>;

/**
 * `silent` never answers, `truncated` sets TC over UDP and answers over TCP, `garbage` answers the right question
 * with octets that are no records.
 */
export type DnsFailure = 'SERVFAIL' | 'REFUSED' | 'silent' | 'truncated' | 'garbage';

export type DnsServerOptions = {
  port?: number;
  /** False: answers with the alias alone and leaves it to the client to ask on. */
  followsAliases?: boolean;
};

export type DnsServerQuery = { name: string; type: string; transport: 'udp' | 'tcp' };

export type TestDnsServer = {
  /** `127.0.0.1:port` */
  address: string;
  /** Replaces what the name has, and ends its failing. */
  set: (name: string, records: DnsNameRecords) => void;
  /** Forgets the name and its failing. */
  remove: (name: string) => void;
  /** Every question that leads to this name fails from now on. */
  fail: (name: string, how: DnsFailure) => void;
  /**
   * What is asked by UDP from now on and leads to this name gets the answer of now, once the returned function is called.
   */
  hold: (name: string) => () => void;
  /** Of all records, and of the absence of records. 300 at first. */
  ttlSeconds: number;
  /** What was asked, in the order of arrival, bounded. Empty it at will. */
  queries: DnsServerQuery[];
  /** Resolves as soon as so many questions have come, those counted that came before the call. */
  whenAsked: (count: number) => Promise<void>;
  stop: () => Promise<void>;
};

const queriesKeptMax = 10_000;
const aliasesMax = 16;
const plainUdpBytesMax = 512;
const serverUdpBytesMax = 1_232;
const stringBytesMax = 255;
const tcpQueryBytesMax = 4_096;
const rcodes = { SERVFAIL: 2, NXDOMAIN: 3, REFUSED: 5 };

type Zone = {
  names: Map<string, DnsNameRecords>;
  failures: Map<string, DnsFailure>;
  holds: Map<string, Hold>;
  followsAliases: boolean;
};

/** What is known when a name is held, and what is to be done when it is let go. */
type Hold = { zone: Zone; replies: (() => void)[] };

/** Where a question leads: the records on the way, the last name, and the failure that stands there, if any. */
type Path = { answers: Answer[]; name: string; failure: DnsFailure | undefined };

export async function startDnsServer(
  records: DnsRecords = {},
  options: DnsServerOptions = {},
): Promise<TestDnsServer> {
  const zone: Zone = {
    names: new Map(Object.entries(records).map(([name, held]) => [canonical(name), held])),
    failures: new Map(),
    holds: new Map(),
    followsAliases: options.followsAliases ?? true,
  };
  const { udp, tcp, port } = await listen(options.port ?? 0);
  const connections = new Set<TcpSocket>();
  let askedCount = 0;
  let expectations: { count: number; resolve: () => void }[] = [];

  const server: TestDnsServer = {
    address: `127.0.0.1:${port}`,
    set: (name, held) => {
      zone.names.set(canonical(name), held);
      zone.failures.delete(canonical(name));
    },
    remove: (name) => {
      zone.names.delete(canonical(name));
      zone.failures.delete(canonical(name));
    },
    fail: (name, how) => {
      zone.failures.set(canonical(name), how);
    },
    hold: (name) => {
      const asItIs = { ...zone, names: new Map(zone.names), failures: new Map(zone.failures) };
      const held: Hold = { zone: asItIs, replies: [] };
      zone.holds.set(canonical(name), held);
      return () => {
        zone.holds.delete(canonical(name));
        for (const reply of held.replies) reply();
      };
    },
    ttlSeconds: 300,
    queries: [],
    whenAsked: (count) =>
      askedCount >= count
        ? Promise.resolve()
        : new Promise((resolve) => {
            expectations.push({ count, resolve });
          }),
    stop: async () => {
      for (const connection of connections) connection.destroy();
      await Promise.all([
        new Promise<void>((resolve) => {
          udp.close(() => {
            resolve();
          });
        }),
        new Promise<void>((resolve) => {
          tcp.close(() => {
            resolve();
          });
        }),
      ]);
    },
  };

  const answer = (
    message: Buffer,
    transport: 'udp' | 'tcp',
    reply: (answered: Buffer | null) => void,
  ): void => {
    const query = decodeQuery(message);
    const question = query?.questions?.[0];
    if (query === null || question === undefined) return;
    const asked = { name: canonical(question.name), type: question.type, transport };
    if (server.queries.length < queriesKeptMax) server.queries.push(asked);
    askedCount += 1;
    const met = expectations.filter(({ count }) => askedCount >= count);
    expectations = expectations.filter((expectation) => !met.includes(expectation));
    for (const { resolve } of met) resolve();
    const { name } = followAliases(zone, asked, server.ttlSeconds);
    const held = transport === 'udp' ? zone.holds.get(name) : undefined;
    const replyNow = () => {
      reply(answerQuery(held?.zone ?? zone, query, asked, server.ttlSeconds));
    };
    if (held === undefined) replyNow();
    else held.replies.push(replyNow);
  };
  udp.on('message', (message, peer) => {
    answer(message, 'udp', (reply) => {
      if (reply !== null) udp.send(reply, peer.port, peer.address);
    });
  });
  tcp.on('connection', (connection) => {
    connections.add(connection);
    connection.on('close', () => connections.delete(connection));
    connection.on('error', () => connection.destroy());
    serveConnection(connection, (message, reply) => {
      answer(message, 'tcp', reply);
    });
  });
  return server;
}

/** UDP and TCP on one port. A port that is free for one and taken for the other is given back, and another tried. */
async function listen(wantedPort: number): Promise<{ udp: UdpSocket; tcp: Server; port: number }> {
  for (let triesLeft = 10; ; triesLeft -= 1) {
    const tcp = createServer();
    await new Promise<void>((resolve, reject) => {
      tcp.once('error', reject);
      tcp.listen(wantedPort, '127.0.0.1', resolve);
    });
    const { port } = tcp.address() as AddressInfo; // It listens on a port, not on a path.
    const udp = createSocket('udp4');
    try {
      await new Promise<void>((resolve, reject) => {
        udp.once('error', reject);
        udp.bind(port, '127.0.0.1', resolve);
      });
      return { udp, tcp, port };
    } catch (cause) {
      udp.close();
      await new Promise((resolve) => tcp.close(resolve));
      if (wantedPort !== 0 || triesLeft === 0) throw cause;
    }
  }
}

/** Queries and replies with a length of two octets before each (RFC 1035 section 4.2.2). */
function serveConnection(
  connection: TcpSocket,
  answer: (message: Buffer, reply: (answered: Buffer | null) => void) => void,
): void {
  let received = Buffer.alloc(0);
  connection.on('data', (chunk: Buffer) => {
    received = Buffer.concat([received, chunk]);
    while (received.length >= 2) {
      const messageBytes = received.readUInt16BE(0);
      if (messageBytes > tcpQueryBytesMax) {
        connection.destroy();
        return;
      }
      if (received.length < 2 + messageBytes) return;
      answer(received.subarray(2, 2 + messageBytes), (reply) => {
        if (reply === null) return;
        const prefix = Buffer.alloc(2);
        prefix.writeUInt16BE(reply.length);
        connection.write(Buffer.concat([prefix, reply]));
      });
      received = received.subarray(2 + messageBytes);
    }
  });
}

function decodeQuery(message: Buffer): DecodedPacket | null {
  try {
    return decode(message);
  } catch {
    return null;
  }
}

/** Null means silence. */
function answerQuery(
  zone: Zone,
  query: DecodedPacket,
  asked: DnsServerQuery,
  ttlSeconds: number,
): Buffer | null {
  const path = followAliases(zone, asked, ttlSeconds);
  const replyWith = (rcode: number, content: Packet = {}) => encodeReply(query, rcode, content);
  switch (path.failure) {
    case 'silent':
      return null;
    case 'SERVFAIL':
    case 'REFUSED':
      return replyWith(rcodes[path.failure]);
    case 'garbage':
      return withGarbage(replyWith(0));
    case 'truncated':
      if (asked.transport === 'udp') return replyWith(0, { flags: TRUNCATED_RESPONSE });
      break;
    case undefined:
  }

  const isAliasOnly = path.answers.length > 0 && !zone.followsAliases;
  const records = isAliasOnly ? [] : answersOf(zone, path.name, asked.type, ttlSeconds);
  const isAbsence = records.length === 0 && !isAliasOnly;
  const authorities = isAbsence ? [startOfAuthority(ttlSeconds)] : [];
  const rcode = isAbsence && !isKnown(zone, path.name) ? rcodes.NXDOMAIN : 0;
  const reply = replyWith(rcode, { answers: [...path.answers, ...records], authorities });
  if (asked.transport === 'tcp' || reply.length <= udpBytesMax(query)) return reply;
  return replyWith(rcode, { flags: TRUNCATED_RESPONSE });
}

/** Ends after `aliasesMax` aliases, so that a circle of them is answered with a long chain. */
function followAliases(zone: Zone, asked: DnsServerQuery, ttlSeconds: number): Path {
  const answers: Answer[] = [];
  let name = asked.name;
  while (answers.length < aliasesMax) {
    const alias = zone.names.get(name)?.CNAME;
    if (alias === undefined || asked.type === 'CNAME' || zone.failures.has(name)) break;
    answers.push({ type: 'CNAME', name, ttl: ttlSeconds, data: alias });
    name = canonical(alias);
    if (!zone.followsAliases) return { answers, name, failure: undefined };
  }
  return { answers, name, failure: zone.failures.get(name) };
}

function answersOf(zone: Zone, name: string, type: string, ttl: number): Answer[] {
  const held = zone.names.get(name);
  if (held === undefined) return [];
  switch (type) {
    case 'A':
    case 'AAAA':
    case 'PTR':
      return (held[type] ?? []).map((data) => ({ type, name, ttl, data }));
    case 'CNAME':
      return held.CNAME === undefined ? [] : [{ type, name, ttl, data: held.CNAME }];
    case 'MX':
      return (held.MX ?? []).map(([preference, exchange]) => ({
        type,
        name,
        ttl,
        data: { preference, exchange: exchange === '' ? '.' : exchange },
      }));
    case 'TXT':
      return (held.TXT ?? []).map((text) => ({ type, name, ttl, data: stringsOf(text) }));
    default:
      return [];
  }
}

function stringsOf(text: string | string[]): Buffer[] {
  if (typeof text !== 'string') return text.map((part) => Buffer.from(part));
  const bytes = Buffer.from(text);
  const parts = [bytes.subarray(0, stringBytesMax)];
  for (let at = stringBytesMax; at < bytes.length; at += stringBytesMax) {
    parts.push(bytes.subarray(at, at + stringBytesMax));
  }
  return parts;
}

function isKnown(zone: Zone, name: string): boolean {
  return zone.names.has(name) || [...zone.names.keys()].some((known) => known.endsWith(`.${name}`));
}

/** As if everything stood in the root zone: how long an absence may be remembered (RFC 2308 section 5). */
function startOfAuthority(ttlSeconds: number): Answer {
  return {
    type: 'SOA',
    name: '.',
    ttl: ttlSeconds,
    data: { mname: 'ns.invalid', rname: 'hostmaster.invalid', serial: 1, minimum: ttlSeconds },
  };
}

function udpBytesMax(query: DecodedPacket): number {
  const option = query.additionals?.find((record) => record.type === 'OPT');
  return option === undefined ? plainUdpBytesMax : Math.max(plainUdpBytesMax, option.udpPayloadSize);
}

function encodeReply(query: DecodedPacket, rcode: number, content: Packet): Buffer {
  const hasEdns = query.additionals?.some(({ type }) => type === 'OPT') ?? false;
  const option: Answer = {
    type: 'OPT',
    name: '.',
    udpPayloadSize: serverUdpBytesMax,
    extendedRcode: 0,
    ednsVersion: 0,
    flags: 0,
    flag_do: false,
    options: [],
  };
  return encode({
    ...content,
    type: 'response',
    id: query.id,
    flags: AUTHORITATIVE_ANSWER | RECURSION_DESIRED | RECURSION_AVAILABLE | (content.flags ?? 0) | rcode,
    questions: query.questions,
    additionals: hasEdns ? [option] : [],
  });
}

/** Announces five records more and puts something else in their place. */
function withGarbage(reply: Buffer): Buffer {
  reply.writeUInt16BE(5, 6);
  return Buffer.concat([reply, Buffer.alloc(64, 0xff)]);
}

function canonical(name: string): string {
  return name.replace(/\.$/, '').toLowerCase();
}
