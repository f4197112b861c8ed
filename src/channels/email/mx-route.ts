import { describeDnsFailure, type MxRecord, type Resolver } from '../../platform/dns/dns.ts';

/** Where mail for a domain goes (RFC 5321 §5.1, RFC 7505). Asks DNS, and opens no connection. */

/** A mail host, in lower case and without a final dot. */
export type MxHost = { name: string; preference: number };

export type MxRoute =
  /** In the order in which they are to be tried; never empty. */
  | { kind: 'route'; hosts: readonly MxHost[] }
  | { kind: 'no_such_domain' }
  /** The domain says that it takes no mail (RFC 7505). */
  | { kind: 'null_mx' }
  /** It has neither MX records nor an address, or MX records that name no hosts. */
  | { kind: 'no_mail_host' }
  /** DNS did not say; it may know later. */
  | { kind: 'failed'; detail: string };

/** Fewer and a large provider's spare hosts are lost; more and a zone of a thousand hosts costs us a thousand looks. */
const hostsMax = 16;

/**
 * The hosts that take mail for `domain` (A-labels), by preference, those of equal preference in random order
 * (RFC 5321 §5.1: the load is theirs to spread). A domain without MX records is its own mail host. `random` is
 * from 0 to 1. Never rejects for anything that DNS says.
 */
export async function findMxRoute(
  resolver: Resolver,
  domain: string,
  random: () => number,
): Promise<MxRoute> {
  const answer = await resolver.mx(domain);
  switch (answer.kind) {
    case 'found':
      return routeOf(answer.records, random);
    case 'failed':
      return { kind: 'failed', detail: describeDnsFailure('MX', answer) };
    case 'absent':
      return answer.reason === 'no_such_domain'
        ? { kind: 'no_such_domain' }
        : findImplicitRoute(resolver, domain);
  }
}

function routeOf(records: readonly MxRecord[], random: () => number): MxRoute {
  // RFC 7505 §3: a null MX stands alone. Beside others it says nothing, and the others hold.
  if (records.every(({ exchange }) => exchange === '')) return { kind: 'null_mx' };
  const preferences = new Map<string, number>();
  for (const { exchange, preference } of records) {
    const name = exchange.toLowerCase();
    if (!isHostName(name)) continue;
    preferences.set(name, Math.min(preference, preferences.get(name) ?? preference));
  }
  // RFC 5321 §5.1: the domain's own address is no way out where MX records are there and of no use.
  if (preferences.size === 0) return { kind: 'no_mail_host' };
  const hosts = Array.from(preferences, ([name, preference]) => ({ name, preference }))
    // By name as well, so that a domain of too many hosts always keeps the same ones.
    .sort((a, b) => a.preference - b.preference || (a.name < b.name ? -1 : 1))
    .slice(0, hostsMax)
    .map((host) => ({ host, turn: random() }))
    .sort((a, b) => a.host.preference - b.host.preference || a.turn - b.turn)
    .map(({ host }) => host);
  return { kind: 'route', hosts };
}

/**
 * DNS knows names of any octets, and zones hold addresses where names belong. Nothing answers to either, and
 * untrusted text goes no further.
 */
function isHostName(name: string): boolean {
  return /^[a-z0-9_.-]+$/.test(name) && !/^[0-9.]+$/.test(name);
}

/** RFC 5321 §5.1: a domain that has an address and no MX record is treated as if it were its own MX. */
async function findImplicitRoute(resolver: Resolver, domain: string): Promise<MxRoute> {
  const [ipv6, ipv4] = await Promise.all([resolver.aaaa(domain), resolver.a(domain)]);
  if (ipv6.kind === 'found' || ipv4.kind === 'found') {
    return { kind: 'route', hosts: [{ name: domain.toLowerCase(), preference: 0 }] };
  }
  if (ipv4.kind === 'failed') return { kind: 'failed', detail: describeDnsFailure('A', ipv4) };
  if (ipv6.kind === 'failed') return { kind: 'failed', detail: describeDnsFailure('AAAA', ipv6) };
  return { kind: 'no_mail_host' };
}
