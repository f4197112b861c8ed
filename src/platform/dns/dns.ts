import type { Clock } from '../clock.ts';
import { resolveName } from './aliases.ts';
import { type CachedAnswer, createAnswerCache } from './answer-cache.ts';
import { type DnsAnswer, type MxRecord, failed } from './answer.ts';
import { createGate } from './gate.ts';
import { canonicalName, reverseName } from './names.ts';
import { type Question, questions } from './questions.ts';
import { parseDnsServer, systemDnsServers } from './server-address.ts';
import { createAskServers } from './servers.ts';

/**
 * Asks recursive DNS servers. It does not do the servers' own work: it walks no delegations and checks no signatures,
 * so the way to the servers must be trusted. What it adds to the one in Node: answers live as long as their records
 * say, absences too; an absence differs from a failure, and one failure from another; and the cache can be bypassed.
 */

export { type DnsAnswer, describeDnsFailure, type MxRecord } from './answer.ts';
export { parseDnsServer } from './server-address.ts';

export type LookupOptions = {
  /** Asks the servers, whatever is cached. */
  isFresh?: boolean;
  /** Shares no lookup that is under way: the servers are asked after this call. For who wants to see what changed just now. */
  isUnshared?: boolean;
  /** Asks at once, however many other lookups wait for their turn. For single questions that much depends on. */
  isUrgent?: boolean;
};

/**
 * No lookup ever rejects. Names in answers are in lower case, without a final dot, and hold only visible ASCII. At
 * most 100 records are given. A text that is no domain name is answered `no_such_domain` without asking anyone.
 */
export type Resolver = {
  /** IPv4 addresses. */
  a: (name: string, options?: LookupOptions) => Promise<DnsAnswer<string>>;
  /** IPv6 addresses. */
  aaaa: (name: string, options?: LookupOptions) => Promise<DnsAnswer<string>>;
  /** As found, unsorted. The null MX (RFC 7505) is one record with the exchange ''. */
  mx: (name: string, options?: LookupOptions) => Promise<DnsAnswer<MxRecord>>;
  /** The strings of one record joined, read as UTF-8. */
  txt: (name: string, options?: LookupOptions) => Promise<DnsAnswer<string>>;
  /** The direct alias only. */
  cname: (name: string, options?: LookupOptions) => Promise<DnsAnswer<string>>;
  /** The names of an IPv4 or IPv6 address. They are not checked against the addresses of these names. */
  ptr: (address: string, options?: LookupOptions) => Promise<DnsAnswer<string>>;
  /** Ends sockets and timers. Lookups under way, and later ones, end as failed. */
  close: () => void;
};

export type ResolverOptions = {
  /** `127.0.0.1:5300`, `::1` or `[::1]:53`. Empty: those of the machine, as they are now. */
  servers: readonly string[];
  clock: Clock;
  cacheEntriesMax?: number;
  /** How long one server is waited for. Shorter gives up on names whose own servers are far away and slow. */
  timeoutMs?: number;
};

const defaultTimeoutMs = 2_000;
const defaultCacheEntriesMax = 20_000;
/** A whole lookup, waiting included, takes so many time-outs at most: two servers are then both asked twice. */
const lookupTimeouts = 5;
/** Each has a socket open. More would use up file descriptors and flood the servers. */
const lookupsMax = 256;
/** More wait for longer than a lookup may take. */
const waitingMax = 10_000;

const closedDetail = 'the resolver was closed';

/** Throws if one of `servers` is not an address with or without a port. */
export function createResolver(options: ResolverOptions): Resolver {
  const { clock, timeoutMs = defaultTimeoutMs } = options;
  const servers = options.servers.length > 0 ? options.servers.map(requireServer) : systemDnsServers();
  const askServers = createAskServers({ clock, servers, timeoutMs });
  const cache = createAnswerCache(clock, options.cacheEntriesMax ?? defaultCacheEntriesMax);
  const gate = createGate({ placesMax: lookupsMax, waitingMax });
  const underWay = new Map<string, Promise<CachedAnswer>>();
  const controllers = new Set<AbortController>();
  let isClosed = false;

  const resolve = async <T extends string | MxRecord>(
    key: string,
    question: Question<T>,
    name: string,
    { isUrgent = false }: LookupOptions,
    signal: AbortSignal,
  ): Promise<DnsAnswer<T>> => {
    const leave = isUrgent ? () => undefined : await gate.enter(signal);
    // Neither is cached: it is about this process, and not about the name.
    if (leave === 'full') return failed('timeout', 'too many lookups wait');
    if (leave === 'aborted') return failed('timeout', String(signal.reason));
    try {
      const resolution = await resolveName((asked) => askServers(asked, signal), question, name);
      cache.put(key, resolution.answer, resolution.ttlSeconds);
      return resolution.answer;
    } finally {
      leave();
    }
  };

  const start = async <T extends string | MxRecord>(
    key: string,
    question: Question<T>,
    name: string,
    options: LookupOptions,
  ): Promise<DnsAnswer<T>> => {
    const controller = new AbortController();
    const limitMs = timeoutMs * lookupTimeouts;
    const cancelTimer = clock.after(limitMs, () => {
      controller.abort(`no answer within ${limitMs} ms`);
    });
    controllers.add(controller);
    try {
      return await resolve(key, question, name, options, controller.signal);
    } finally {
      cancelTimer();
      controllers.delete(controller);
    }
  };

  const lookUp = async <T extends string | MxRecord>(
    question: Question<T>,
    name: string | null,
    lookup: LookupOptions = {},
  ): Promise<DnsAnswer<T>> => {
    if (name === null) return { kind: 'absent', reason: 'no_such_domain' };
    if (isClosed) return failed('timeout', closedDetail);
    const key = `${question.type} ${name}`;
    // What is urgent must not wait for one that waits for its turn itself.
    const waitingKey = lookup.isUrgent === true ? `urgent ${key}` : key;
    const known = lookup.isFresh === true ? undefined : cache.get(key);
    const present = known ?? (lookup.isUnshared === true ? undefined : underWay.get(waitingKey));
    // The key names the type, and whatever stands under it was read as records of that type.
    if (present !== undefined) return present as DnsAnswer<T> | Promise<DnsAnswer<T>>;
    const answer = start(key, question, name, lookup).finally(() => {
      if (underWay.get(waitingKey) === answer) underWay.delete(waitingKey);
    });
    underWay.set(waitingKey, answer);
    return answer;
  };

  return {
    a: (name, lookup) => lookUp(questions.a, canonicalName(name), lookup),
    aaaa: (name, lookup) => lookUp(questions.aaaa, canonicalName(name), lookup),
    mx: (name, lookup) => lookUp(questions.mx, canonicalName(name), lookup),
    txt: (name, lookup) => lookUp(questions.txt, canonicalName(name), lookup),
    cname: (name, lookup) => lookUp(questions.cname, canonicalName(name), lookup),
    ptr: (address, lookup) => lookUp(questions.ptr, reverseName(address), lookup),
    close: () => {
      isClosed = true;
      for (const controller of controllers) controller.abort(closedDetail);
    },
  };
}

function requireServer(text: string) {
  const server = parseDnsServer(text);
  if (server === null) throw new Error(`not the address of a DNS server: ${text}`);
  return server;
}
