import { setImmediate } from 'node:timers/promises';
import { disposableEmailBlocklistSet } from 'disposable-email-domains-js';
import { LRUCache } from 'lru-cache';
import { type Clock, within } from '../platform/clock.ts';
import type { Resolver } from '../platform/dns/dns.ts';
import type { DropReason } from '../messages/messages.ts';
import { type ControlLookup, createControlLookup } from './control-lookup.ts';
import { findDomainFault } from './domain-fault.ts';

/**
 * Whether mail can be delivered to a domain at all. Checked once for each recipient, before the first attempt. Only a
 * definite answer drops a recipient, and only of name servers that know the large domains; if the check takes too long,
 * the attempt itself decides.
 */
export type Deliverability = {
  /** Why mail cannot be delivered to this domain, or null. Takes three seconds at most, and three more before a drop. */
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
 * If our name servers are silent, or deny the large domains, no domain is looked up during this time. If longer, more
 * bad addresses get through once they answer again.
 */
const silenceMs = 30_000;

/**
 * A domain that did not answer is not waited for again during this time. If longer, the effect is the same as above.
 */
const domainSilenceMs = 30_000;
/** Domains that are remembered. With fewer, some domains are waited for more often than necessary. */
const domainsMax = 10_000;

export function createDeliverability(tools: DeliverabilityTools): Deliverability {
  const { resolver, clock, areDomainsLookedUp } = tools;
  // Made once: the library takes a millisecond to make the set at each call.
  const disposableDomains = disposableEmailBlocklistSet();
  const lookUp = (domain: string) => findDomainFault(resolver, domain);
  const control = createControlLookup(tools);
  const silence = createSilence(clock, control);
  const waits = createWaits(clock);
  return {
    findFault: async (domain) => {
      if (isListed(disposableDomains, domain)) return 'disposable';
      if (!areDomainsLookedUp || silence.lasts()) return null;
      const wait = waits.begin(domain);
      const fault = await answeredWithin(clock, wait.leftMs(), lookUp(domain));
      if (fault === null) return null;
      if (fault !== 'too_late') {
        // Nobody is dropped by the word of name servers that know none of the large domains either.
        if ((await control.verdict()) === 'answer') return fault;
        silence.begin();
        return null;
      }
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
function createSilence(clock: Clock, control: ControlLookup) {
  let inVain = 0;
  let untilMs = -Infinity;
  let isAsking = false;

  const begin = () => {
    untilMs = clock.monotonicMs() + silenceMs;
  };
  const judge = async () => {
    isAsking = true;
    if ((await control.ask()) === 'silent') begin();
    else inVain = 0;
    isAsking = false;
  };
  return {
    lasts: () => clock.monotonicMs() < untilMs,
    begin,
    noteInVain: () => {
      inVain += 1;
      // None of it rejects.
      if (inVain >= inVainMax && !isAsking) void judge();
    },
  };
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
