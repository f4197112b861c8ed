import { disposableEmailBlocklistSet } from 'disposable-email-domains-js';
import { findMxRoute, type MxRoute } from '../channels/email/email.ts';
import type { Clock } from '../platform/clock.ts';
import type { Resolver } from '../platform/dns/dns.ts';
import type { DropReason } from './schema.ts';

/**
 * Whether mail can be delivered to a domain at all, asked once for each recipient before the first attempt. Only a
 * definite answer drops anybody: what cannot be found out in time is left to the attempt itself.
 */
export type Deliverability = {
  /** Why nobody at this domain can be written to, or null. Takes `waitMaxMs` at most. */
  findFault: (domain: string) => Promise<DropReason | null>;
  /** Begins to look, so that the answer is there when it is asked for. */
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

/** After so many domains in a row that were waited for in vain it is the name servers that are silent, and not theirs. */
const inVainMax = 20;

/** For so long nobody is waited for then. Longer lets more bad addresses through once they answer again. */
const silenceMs = 30_000;

export function createDeliverability(tools: DeliverabilityTools): Deliverability {
  const { resolver, clock, areDomainsLookedUp } = tools;
  // Made once: the library makes the set anew whenever it is asked, at a millisecond each.
  const disposableDomains = disposableEmailBlocklistSet();
  const lookUp = async (domain: string): Promise<DropReason | null> => {
    const route = await findMxRoute(resolver, domain, () => 0);
    return route.kind === 'route' ? findUnreachability(resolver, route) : faultOfRoute(route);
  };
  const silence = createSilence(clock);
  return {
    findFault: async (domain) => {
      if (isListed(disposableDomains, domain)) return 'disposable';
      if (!areDomainsLookedUp || silence.lasts()) return null;
      const fault = await within(clock, lookUp(domain));
      silence.note(fault === 'too_late');
      return fault === 'too_late' ? null : fault;
    },
    prepare: (domain) => {
      // The resolver keeps the answers, and does not reject.
      if (areDomainsLookedUp && !silence.lasts()) void lookUp(domain);
    },
  };
}

/**
 * Whether the name servers keep silent: a hand-off that waits for each domain in vain would slow all mail down to a
 * few messages a second. Once a silence is over, a single domain that is waited for in vain begins the next.
 */
function createSilence(clock: Clock) {
  let inVain = 0;
  let untilMs = -Infinity;
  return {
    lasts: () => clock.monotonicMs() < untilMs,
    note: (isInVain: boolean) => {
      inVain = isInVain ? inVain + 1 : 0;
      if (inVain >= inVainMax) untilMs = clock.monotonicMs() + silenceMs;
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

async function within(
  clock: Clock,
  looking: Promise<DropReason | null>,
): Promise<DropReason | null | 'too_late'> {
  let cancel: () => void = () => undefined;
  const timeout = new Promise<'too_late'>((resolve) => {
    cancel = clock.after(waitMaxMs, () => {
      resolve('too_late');
    });
  });
  try {
    return await Promise.race([looking, timeout]);
  } finally {
    cancel();
  }
}
