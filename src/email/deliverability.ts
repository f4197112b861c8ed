import { setImmediate } from 'node:timers/promises';
import { disposableEmailBlocklistSet } from 'disposable-email-domains-js';
import { LRUCache } from 'lru-cache';
import { findMxRoute, type MxRoute } from '../channels/email/email.ts';
import { type Clock, within } from '../platform/clock.ts';
import type { Resolver } from '../platform/dns/dns.ts';
import type { DropReason } from '../messages/messages.ts';

/**
 * Whether mail can be delivered to a domain at all. Checked once for each recipient, before the first attempt. Only a
 * definite answer drops a recipient; if the check takes too long, the attempt itself decides.
 */
export type Deliverability = {
  /** Why mail cannot be delivered to this domain, or null. Takes three seconds at most. */
  findFault: (domain: string) => Promise<DropReason | null>;
  /** Starts the look-up and its wait, so that the answer is there when `findFault` is called. */
  prepare: (domain: string) => void;
};

export type DeliverabilityTools = {
  resolver: Resolver;
  clock: Clock;
  /** If false, only checks without the DNS are made. */
  areDomainsLookedUp: boolean;
};

/** Each wait occupies a slot for hand-offs. For domains with slower name servers the attempt itself decides. */
const waitMaxMs = 3_000;

/**
 * After so many domains without an answer it is checked whether our own name servers are silent. With fewer, the check
 * runs more often for senders with many dead domains; with more, hand-offs wait longer when our name servers are
 * silent.
 */
const inVainMax = 20;

/**
 * If our name servers are silent, no domain is waited for during this time. If longer, more bad addresses get through
 * once they answer again.
 */
const silenceMs = 30_000;

/**
 * A domain that did not answer is not waited for again during this time. If longer, the effect is the same as above.
 */
const domainSilenceMs = 30_000;
/** Domains that are remembered. With fewer, some domains are waited for more often than necessary. */
const domainsMax = 10_000;

/** Domains of large providers: name servers that answer for none of them are silent for all domains. */
export const wellKnownDomains: readonly string[] = ['gmail.com', 'outlook.com', 'yahoo.com'];

export function createDeliverability(tools: DeliverabilityTools): Deliverability {
  const { resolver, clock, areDomainsLookedUp } = tools;
  // Made once: the library takes a millisecond to make the set at each call.
  const disposableDomains = disposableEmailBlocklistSet();
  const lookUp = async (domain: string): Promise<DropReason | null> => {
    const route = await findMxRoute(resolver, domain, () => 0);
    return route.kind === 'route' ? findUnreachability(resolver, route) : faultOfRoute(route);
  };
  const silence = createSilence(tools);
  const waits = createWaits(clock);
  return {
    findFault: async (domain) => {
      if (isListed(disposableDomains, domain)) return 'disposable';
      if (!areDomainsLookedUp || silence.lasts()) return null;
      const wait = waits.begin(domain);
      const fault = await answeredWithin(clock, wait.leftMs(), lookUp(domain));
      if (fault !== 'too_late') return fault;
      if (wait.endInVain()) silence.noteInVain();
      return null;
    },
    prepare: (domain) => {
      if (!areDomainsLookedUp || silence.lasts()) return;
      waits.begin(domain);
      // The resolver caches the answer, and does not reject.
      void lookUp(domain);
    },
  };
}

type Wait = {
  leftMs: () => number;
  /** Ends a wait without an answer. Returns false if another wait for the same domain has already counted it. */
  endInVain: () => boolean;
};

/**
 * Limits the wait for each domain, over all of its recipients together. Otherwise a list of addresses at dead domains
 * would occupy a slot for hand-offs for three seconds for each address.
 */
function createWaits(clock: Clock): { begin: (domain: string) => Wait } {
  const waits = new LRUCache<string, { begunAtMs: number; isInVain: boolean }>({ max: domainsMax });
  return {
    begin: (domain) => {
      const nowMs = clock.monotonicMs();
      const known = waits.get(domain);
      const isOver = known === undefined || nowMs - known.begunAtMs >= waitMaxMs + domainSilenceMs;
      const wait = isOver ? { begunAtMs: nowMs, isInVain: false } : known;
      if (isOver) waits.set(domain, wait);
      return {
        leftMs: () => Math.max(0, wait.begunAtMs + waitMaxMs - clock.monotonicMs()),
        endInVain: () => {
          const isFirst = !wait.isInVain;
          wait.isInVain = true;
          return isFirst;
        },
      };
    },
  };
}

/**
 * Whether our own name servers are silent: waiting in vain for each domain would slow all mail down to a few messages a
 * second. Many domains without an answer are no proof: a sender could write to domains whose name servers are dead, and
 * so turn the check off for all organizations. Therefore our name servers are tested with domains that no sender has
 * chosen. After a silence has ended, a single domain without an answer triggers the next test.
 */
function createSilence({ resolver, clock }: Pick<DeliverabilityTools, 'resolver' | 'clock'>) {
  let inVain = 0;
  let untilMs = -Infinity;
  let isAsking = false;

  const areServersSilent = async (): Promise<boolean> => {
    const asked = wellKnownDomains.map(async (domain) => {
      const answer = await resolver.mx(domain, { isFresh: true, isUrgent: true });
      return answer.kind !== 'failed' || Promise.reject(new Error(answer.detail));
    });
    const anyAnswer = Promise.any(asked).catch(() => false);
    return !(await within(clock, waitMaxMs, anyAnswer, false));
  };
  const judge = async () => {
    isAsking = true;
    if (await areServersSilent()) untilMs = clock.monotonicMs() + silenceMs;
    else inVain = 0;
    isAsking = false;
  };
  return {
    lasts: () => clock.monotonicMs() < untilMs,
    noteInVain: () => {
      inVain += 1;
      // None of it rejects.
      if (inVain >= inVainMax && !isAsking) void judge();
    },
  };
}

function faultOfRoute(route: Exclude<MxRoute, { kind: 'route' }>): DropReason | null {
  switch (route.kind) {
    case 'no_such_domain':
      return 'invalid_domain';
    case 'null_mx':
      return 'null_mx';
    case 'no_mail_host':
      return 'no_mx';
    case 'failed':
      return null;
  }
}

/** The number of hosts that a delivery would try first. */
const hostsMax = 5;

/** A domain is unreachable if its mail exchangers have no address. */
async function findUnreachability(
  resolver: Resolver,
  route: Extract<MxRoute, { kind: 'route' }>,
): Promise<DropReason | null> {
  if (route.hosts.length > hostsMax) return null;
  for (const { name } of route.hosts) {
    const [v4, v6] = await Promise.all([resolver.a(name), resolver.aaaa(name)]);
    if (v4.kind !== 'absent' || v6.kind !== 'absent') return null;
  }
  return 'unreachable';
}

/** True if the list has the domain or a parent domain of it: some listed domains give out subdomains to anyone. */
function isListed(domains: ReadonlySet<string>, domain: string): boolean {
  const labels = domain.split('.');
  return labels.slice(0, -1).some((_label, index) => domains.has(labels.slice(index).join('.')));
}

/** With no time left, only an answer that is already known counts. */
async function answeredWithin(
  clock: Clock,
  leftMs: number,
  looking: Promise<DropReason | null>,
): Promise<DropReason | null | 'too_late'> {
  return leftMs > 0
    ? within(clock, leftMs, looking, 'too_late')
    : Promise.race([looking, setImmediate<'too_late'>('too_late')]);
}
