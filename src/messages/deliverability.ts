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

export function createDeliverability(tools: DeliverabilityTools): Deliverability {
  const { resolver, clock, areDomainsLookedUp } = tools;
  // Made once: the library makes the set anew whenever it is asked, at a millisecond each.
  const disposableDomains = disposableEmailBlocklistSet();
  const lookUp = async (domain: string): Promise<DropReason | null> => {
    const route = await findMxRoute(resolver, domain, () => 0);
    return route.kind === 'route' ? findUnreachability(resolver, route) : faultOfRoute(route);
  };
  return {
    findFault: async (domain) => {
      if (isListed(disposableDomains, domain)) return 'disposable';
      if (!areDomainsLookedUp) return null;
      return within(clock, lookUp(domain));
    },
    prepare: (domain) => {
      // The resolver keeps the answers, and does not reject.
      if (areDomainsLookedUp) void lookUp(domain);
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

async function within(clock: Clock, looking: Promise<DropReason | null>): Promise<DropReason | null> {
  let cancel: () => void = () => undefined;
  const timeout = new Promise<null>((resolve) => {
    cancel = clock.after(waitMaxMs, () => {
      resolve(null);
    });
  });
  try {
    return await Promise.race([looking, timeout]);
  } finally {
    cancel();
  }
}
