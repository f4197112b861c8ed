import { setImmediate } from 'node:timers/promises';
import { disposableEmailBlocklistSet } from 'disposable-email-domains-js';
import { LRUCache } from 'lru-cache';
import { findMxRoute, type MxRoute } from '../channels/email/email.ts';
import { type Clock, within } from '../platform/clock.ts';
import type { Resolver } from '../platform/dns/dns.ts';
import type { DropReason } from '../messages/messages.ts';

/**
 * Whether mail can be delivered to a domain at all, asked once for each recipient before the first attempt. Only a
 * definite answer drops anybody: what cannot be found out in time is left to the attempt itself.
 */
export type Deliverability = {
  /** Why nobody at this domain can be written to, or null. Takes three seconds at most. */
  findFault: (domain: string) => Promise<DropReason | null>;
  /** Begins to look, and to wait, so that the answer is there when it is asked for. */
  prepare: (domain: string) => void;
};

export type DeliverabilityTools = {
  resolver: Resolver;
  clock: Clock;
  /** False: only what is known without the DNS counts. */
  areDomainsLookedUp: boolean;
};

/** A place for a hand-off is taken meanwhile. Whoever has slow name servers is found out by the attempt instead. */
const waitMaxMs = 3_000;

/**
 * After so many domains that were waited for in vain it is asked whether it is our name servers that are silent, and
 * not theirs. Fewer ask more often where domains are dead; more keep hand-offs waiting for longer where ours are.
 */
const inVainMax = 20;

/** For so long nobody is waited for then. Longer lets more bad addresses through once they answer again. */
const silenceMs = 30_000;

/** For so long a domain that was waited for in vain is not waited for again. As above. */
const domainSilenceMs = 30_000;
/** Those that are remembered at once. With fewer, a domain is waited for more often than need be. */
const domainsMax = 10_000;

/** Large providers: name servers that answer for none of them answer for nobody. */
export const wellKnownDomains: readonly string[] = ['gmail.com', 'outlook.com', 'yahoo.com'];

export function createDeliverability(tools: DeliverabilityTools): Deliverability {
  const { resolver, clock, areDomainsLookedUp } = tools;
  // Made once: the library makes the set anew whenever it is asked, at a millisecond each.
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
      // The resolver keeps the answers, and does not reject.
      void lookUp(domain);
    },
  };
}

type Wait = {
  leftMs: () => number;
  /** False where others have waited for the domain in vain as well, and said so. */
  endInVain: () => boolean;
};

/**
 * How long each domain is waited for, by all of its recipients together: a list of addresses at domains that are dead
 * would else hold a place for a hand-off for three seconds for every one of them.
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
 * Whether our name servers keep silent: a hand-off that waits for each domain in vain would slow all mail down to a
 * few messages a second. That many domains say nothing does not show it, since anybody can write to domains whose own
 * name servers are dead, and would have everybody's addresses unchecked by it. So they are asked for domains that no
 * sender has chosen. Once a silence is over, a single domain that is waited for in vain makes them be asked again.
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
      // Nothing of it rejects.
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

/** As many hosts as a delivery would try first. */
const hostsMax = 5;

/** Mail exchangers that exist in name only take no mail. */
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

/** The domain itself, or one above it that hands out names to everybody. */
function isListed(domains: ReadonlySet<string>, domain: string): boolean {
  const labels = domain.split('.');
  return labels.slice(0, -1).some((_label, index) => domains.has(labels.slice(index).join('.')));
}

/** Where no time is left, what is known already counts. */
async function answeredWithin(
  clock: Clock,
  leftMs: number,
  looking: Promise<DropReason | null>,
): Promise<DropReason | null | 'too_late'> {
  return leftMs > 0
    ? within(clock, leftMs, looking, 'too_late')
    : Promise.race([looking, setImmediate<'too_late'>('too_late')]);
}
