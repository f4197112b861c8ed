import { findMxRoute, type MxRoute } from '../channels/email/email.ts';
import type { DropReason } from '../messages/messages.ts';
import type { Resolver } from '../platform/dns/dns.ts';

/** Why mail cannot be delivered to a domain, by what the name servers say; null if it can, or if they do not say. */
export async function findDomainFault(resolver: Resolver, domain: string): Promise<DropReason | null> {
  const route = await findMxRoute(resolver, domain, () => 0);
  return route.kind === 'route' ? findUnreachability(resolver, route) : faultOfRoute(route);
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
