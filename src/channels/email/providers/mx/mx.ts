import { LRUCache } from 'lru-cache';
import type { Clock } from '../../../../platform/clock.ts';
import type { Resolver } from '../../../../platform/dns/dns.ts';
import { isPublicAddress } from '../../../../platform/outbound/public-address.ts';
import { partOf, type ProcessShare } from '../../../../platform/process-share.ts';
import type { DeferReason, RemoteReply, SendOutcome } from '../../../outcome.ts';
import type { EmailHandOff, EmailProvider } from '../../provider.ts';
import { abortReason, createAbortWatch } from '../../../abort-watch.ts';
import { needsSmtpUtf8, refuseEnvelope } from '../smtp/envelope.ts';
import { Destination } from './destination.ts';
import type { SharedByDestinations, MxLimits } from './destination.ts';
import { createDnsWatch } from './dns-watch.ts';
import type { DnsWatch } from './dns-watch.ts';
import { hasRoute } from './network.ts';
import { wordsOf } from './reach.ts';
import type { ConnectionNeeds } from './reach.ts';
import { findMxRoute } from '../../mx-route.ts';
import type { MxHost, MxRoute } from '../../mx-route.ts';

/**
 * Mail straight to the recipient's own mail servers (RFC 5321 §5).
 *
 * A hand-off asks DNS for its domain's route (../../mx-route.ts) and goes to the destination (destination.ts) that
 * stands for the hosts of that route: domains of one mail provider share its connections, its limits and its pauses.
 * The destination reaches its hosts (reach.ts) and keeps connections in a pool (../smtp/pool.ts); what is promised of a
 * single transaction is in ../smtp/transactions.ts.
 *
 * Promised: a destination that is slow, away or unwilling delays only its own mail. What it has no room for is
 * `postponed` and costs no attempt. An address is refused only for what DNS or a mail server said of it.
 *
 * Not promised: that different destinations are different servers. Where a mail provider gives every domain host
 * names of its own, each is a destination with connections of its own.
 */

export type MxProviderOptions = {
  resolver: Resolver;
  /**
   * Asked whether DNS answers at all. Give it one of its own: while many lookups wait for a domain's dead name
   * servers, the installation's own resolver would look dead as well.
   */
  probeResolver?: Resolver;
  clock: Clock;
  /** From 0 to 1. */
  random: () => number;
  /** This machine's name, to say in EHLO. Many servers want it to lead back to the address that they see. */
  heloName: string;
  /** 25, except in tests. */
  port: number;
  /** Whether mail may go to addresses that are not public: this machine's own network. */
  mayUsePrivateAddresses: boolean;
  /** Whether mail for this domain goes over TLS with a valid certificate or not at all. */
  requiresTls: (recipientDomain: string) => boolean;
  /** PEM of the authorities to trust instead of the machine's. */
  authorities?: string;
  limits?: Partial<MxLimits>;
  /** Whether this machine has a way to anywhere; asked when it finds none to a destination. */
  hasRoute?: () => Promise<boolean>;
};

/**
 * Connections per destination: fewer is slow where servers are far away; more is where large providers begin to
 * refuse. Other people's servers keep places for idle connections, so these are short.
 */
export const defaultLimits: MxLimits = {
  placesMax: 512,
  connectionsMax: 200,
  connectionsPerDestinationMax: 8,
  handOffsPerConnectionMax: 100,
  idleTimeoutMs: 5_000,
  destinationsMax: 4_096,
};

/** Those of one of several processes: what others count of a machine is divided. */
export function limitsOf(share: ProcessShare): MxLimits {
  return {
    ...defaultLimits,
    connectionsMax: partOf(defaultLimits.connectionsMax, share),
    connectionsPerDestinationMax: partOf(defaultLimits.connectionsPerDestinationMax, share),
  };
}

const failedAddressesMax = 4_096;

/** An email provider that delivers to the recipient's own servers. Opens nothing before the first hand-off. */
export function createMxProvider(options: MxProviderOptions): EmailProvider {
  const state = openState(options);
  const { placesMax } = state.shared.limits;
  let isClosing = false;
  return {
    name: 'mx',
    isReportedById: false,
    concurrency: placesMax,
    handOff: async (handOff) => {
      if (handOff.signal.aborted) throw abortReason(handOff.signal);
      if (isClosing) return putOff('provider_unavailable', wordsOf(null, 'closing down'));
      // The worker keeps to `concurrency`. Anything far beyond is a mistake of the caller.
      if (state.underWay.size >= 2 * placesMax)
        return putOff('rate_limited', wordsOf(null, 'too much at once'));
      const ending = deliver(state, handOff);
      state.underWay.add(ending);
      try {
        return await ending;
      } finally {
        state.underWay.delete(ending);
      }
    },
    probe: () => state.dnsWatch.probe(),
    close: async () => {
      isClosing = true;
      // Ends because nothing is taken on any more, and everything under way has its time-outs.
      while (state.underWay.size > 0) await Promise.allSettled(state.underWay);
      await Promise.all(Array.from(state.destinations.values(), (destination) => destination.close()));
    },
  };
}

type MxState = {
  shared: SharedByDestinations;
  requiresTls: (recipientDomain: string) => boolean;
  dnsWatch: DnsWatch;
  /** The one used last at the end. */
  destinations: Map<string, Destination>;
  underWay: Set<Promise<SendOutcome>>;
};

function openState(options: MxProviderOptions): MxState {
  const { resolver, clock, random, heloName, port, mayUsePrivateAddresses, requiresTls } = options;
  return {
    shared: {
      resolver,
      clock,
      random,
      heloName,
      port,
      mayUseAddress: mayUsePrivateAddresses ? () => true : isPublicAddress,
      authorities: options.authorities ?? null,
      hasRoute: options.hasRoute ?? hasRoute,
      failedUntilMs: new LRUCache({ max: failedAddressesMax }),
      limits: { ...defaultLimits, ...options.limits },
      abortWatch: createAbortWatch(),
      admitted: 0,
      strangers: 0,
      connections: 0,
      firstOpenings: 0,
      connected: new Set(),
    },
    requiresTls,
    dnsWatch: createDnsWatch({ resolver: options.probeResolver ?? resolver, clock }),
    destinations: new Map(),
    underWay: new Set(),
  };
}

async function deliver(state: MxState, handOff: EmailHandOff): Promise<SendOutcome> {
  const refused = refuseEnvelope(handOff, null);
  if (refused !== null) return refused;
  const domain = domainOf(handOff.recipient);
  if (domain === null) return reject('5.1.2', 'the address has no domain that mail could go to');
  const { resolver, random } = state.shared;
  const route = await unlessAborted(state, handOff.signal, findMxRoute(resolver, domain, random));
  if (route.kind !== 'route') return outcomeWithoutRoute(state, domain, route);
  const needs = {
    isTlsRequired: state.requiresTls(domain),
    isSmtpUtf8Required: needsSmtpUtf8(handOff.recipient),
  };
  return destinationFor(state, needs, route.hosts).handOff(handOff, route.hosts);
}

/** In lower case; null if there is none, or an address or something else that is not in the DNS. */
function domainOf(recipient: string): string | null {
  const at = recipient.lastIndexOf('@');
  const domain = recipient.slice(at + 1).toLowerCase();
  const isName = /^[a-z0-9_-]+(?:\.[a-z0-9_-]+)*$/.test(domain) && !/^[0-9.]+$/.test(domain);
  return at !== -1 && isName ? domain : null;
}

/** Rejects with the signal's reason as soon as it aborts; what was asked ends by itself. */
function unlessAborted<T>(state: MxState, signal: AbortSignal, asked: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const stopWatching = state.shared.abortWatch.watch(signal, () => {
      reject(abortReason(signal));
    });
    asked.finally(stopWatching).then(resolve, reject);
  });
}

async function outcomeWithoutRoute(
  state: MxState,
  domain: string,
  route: Exclude<MxRoute, { kind: 'route' }>,
): Promise<SendOutcome> {
  switch (route.kind) {
    case 'no_such_domain':
      return reject('5.1.2', `${domain}: the domain does not exist`);
    case 'null_mx':
      // RFC 7505 §3 and §4.2.
      return reject('5.1.10', `${domain}: the domain accepts no mail (null MX)`);
    case 'no_mail_host':
      return reject('5.4.4', `${domain}: the domain has neither mail hosts nor an address`);
    case 'failed': {
      const reason = (await state.dnsWatch.isAway()) ? 'provider_unavailable' : 'other';
      return putOff(reason, wordsOf('4.4.3', `${domain}: ${route.detail}`));
    }
  }
}

/**
 * A destination is what the hosts of a route are together, in the order of their preferences: domains that have the
 * same ones share it. What a connection must offer belongs to it as well, so that no message leaves over one that is good
 * enough only for others.
 */
function destinationFor(state: MxState, needs: ConnectionNeeds, hosts: readonly MxHost[]): Destination {
  const { destinations, shared } = state;
  const { isTlsRequired, isSmtpUtf8Required } = needs;
  const key = `${isTlsRequired ? 'tls' : 'any'} ${isSmtpUtf8Required ? 'utf8' : 'ascii'} ${keyOf(hosts)}`;
  const destination = destinations.get(key) ?? new Destination(shared, needs);
  destinations.delete(key);
  destinations.set(key, destination);
  if (destinations.size > shared.limits.destinationsMax) forgetOne(destinations);
  return destination;
}

/** Equal for routes that differ only in how hosts of equal preference were shuffled, or in the numbers themselves. */
function keyOf(hosts: readonly MxHost[]): string {
  const ranks = new Map<number, string[]>();
  for (const { name, preference } of hosts) {
    const rank = ranks.get(preference);
    if (rank === undefined) ranks.set(preference, [name]);
    else rank.push(name);
  }
  return Array.from(ranks.values(), (names) => names.sort().join(' ')).join('\n');
}

/** The one that was used longest ago and has nothing under way. There is one, because places are fewer. */
function forgetOne(destinations: Map<string, Destination>): void {
  for (const [key, destination] of destinations) {
    if (!destination.isQuiet()) continue;
    destinations.delete(key);
    return;
  }
}

function reject(enhancedCode: string, detail: string): SendOutcome {
  return { kind: 'rejected', reason: 'domain_not_found', reply: wordsOf(enhancedCode, detail) };
}

function putOff(reason: DeferReason, reply: RemoteReply): SendOutcome {
  return { kind: 'deferred', reason, reply };
}
