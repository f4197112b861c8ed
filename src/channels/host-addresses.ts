import { isIP, type LookupFunction } from 'node:net';
import ipaddr from 'ipaddr.js';
import { describeDnsFailure, type Resolver } from '../platform/dns/dns.ts';

/** From the name of a host that a stranger may choose to the addresses at which it may be called. */

export type HostAddresses = {
  /** IPv6 and IPv4 in turns, so that a machine that has only one of them gets at it soon. */
  addresses: readonly string[];
  /** Those to which nothing goes, as they stood in DNS. */
  refused: readonly string[];
  /** What DNS did not say, or null. */
  failure: string | null;
};

/** More than a host needs, fewer than a zone could give it. */
const addressesPerFamilyMax = 8;

/**
 * Looks up a host's addresses. The owner of a domain can point it anywhere, at this machine's neighbours and at its
 * metadata service too: addresses that are not public are refused, unless `mayUsePrivateAddresses`.
 */
export async function findHostAddresses(
  { resolver, mayUsePrivateAddresses }: { resolver: Resolver; mayUsePrivateAddresses: boolean },
  name: string,
): Promise<HostAddresses> {
  const [ipv6, ipv4] = await Promise.all([resolver.aaaa(name), resolver.a(name)]);
  const sixes = ipv6.kind === 'found' ? ipv6.records.slice(0, addressesPerFamilyMax) : [];
  const fours = ipv4.kind === 'found' ? ipv4.records.slice(0, addressesPerFamilyMax) : [];
  const inTurns = Array.from({ length: addressesPerFamilyMax }, (_, at) => [sixes[at], fours[at]])
    .flat()
    .filter((address) => address !== undefined);
  const isUsable = (address: string) => mayUsePrivateAddresses || isPublicAddress(address);
  return {
    addresses: inTurns.filter(isUsable),
    refused: inTurns.filter((address) => !isUsable(address)),
    failure:
      ipv4.kind === 'failed'
        ? describeDnsFailure('A', ipv4)
        : ipv6.kind === 'failed'
          ? describeDnsFailure('AAAA', ipv6)
          : null,
  };
}

/**
 * For connections to hosts that a stranger may choose: looks a name up by `resolver`, and fails if it has no public
 * address. The connection is made to the address that was checked, so that a name which changes meanwhile does not get
 * round the check. Node asks for no lookup of a host that is an address itself: whoever takes such hosts must check them.
 */
export function lookupPublicAddresses(resolver: Resolver): LookupFunction {
  return (host, { all }, callback) => {
    void findHostAddresses({ resolver, mayUsePrivateAddresses: false }, host).then((found) => {
      const addresses = found.addresses.map((address) => ({ address, family: isIP(address) }));
      const [first] = addresses;
      if (first === undefined) callback(new Error(describeNoAddress(found)), '');
      else if (all === true) callback(null, addresses);
      else callback(null, first.address, first.family);
    });
  };
}

function describeNoAddress({ refused, failure }: HostAddresses): string {
  if (refused.length > 0) return 'the host has private addresses only';
  return failure ?? 'the host has no address';
}

/** IANA gives out global unicast IPv6 addresses from here alone (RFC 3513 §4). */
const globalUnicast = ipaddr.parseCIDR('2000::/3');

/** Whether an address is one of the public Internet, also where IPv4 is wrapped in IPv6. */
export function isPublicAddress(address: string): boolean {
  if (isIP(address) === 0 || isIpv4Compatible(address)) return false;
  const parsed = ipaddr.parse(address);
  const embedded = embeddedIpv4(parsed);
  if (embedded !== null) return embedded.range() === 'unicast';
  return parsed.range() === 'unicast' && (parsed.kind() === 'ipv4' || parsed.match(globalUnicast));
}

/** RFC 4291 §2.5.5.1: long given up. The library reads `::1.2.3.4` as if it were `::ffff:1.2.3.4`; systems do not. */
function isIpv4Compatible(address: string): boolean {
  return /^::\d+\./.test(address);
}

/** Whether an address is always the caller's own (loopback, unspecified): a name that points there has no mail host. */
export function isSelfAddress(address: string): boolean {
  if (isIP(address) === 0) return false;
  const parsed = ipaddr.parse(address);
  const range = (embeddedIpv4(parsed) ?? parsed).range();
  return range === 'loopback' || range === 'unspecified';
}

/** The IPv4 address in an IPv6 one of a kind that leads to it, or null. */
function embeddedIpv4(address: ipaddr.IPv4 | ipaddr.IPv6): ipaddr.IPv4 | null {
  if (!('parts' in address)) return null;
  const octets = address.toByteArray();
  if (address.range() === 'ipv4Mapped') return new ipaddr.IPv4(octets.slice(12));
  // RFC 3056 §2: 2002:, the IPv4 address, and any subnet below it.
  if (address.range() === '6to4') return new ipaddr.IPv4(octets.slice(2, 6));
  // RFC 6052 §2.1: the well-known prefix. The local one (RFC 8215) has its IPv4 address wherever its owner likes.
  if (address.match(wellKnownNat64)) return new ipaddr.IPv4(octets.slice(12));
  return null;
}

const wellKnownNat64 = ipaddr.parseCIDR('64:ff9b::/96');
