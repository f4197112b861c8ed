import { isIP, type LookupFunction } from 'node:net';
import { describeDnsFailure, type Resolver } from '../dns/dns.ts';
import { isPublicAddress } from './public-address.ts';

/** From the name of a host that a stranger may choose to the addresses at which it may be called. */

export type HostAddresses = {
  /** IPv6 and IPv4 in turns, so that a machine that has only one of them gets at it soon. */
  addresses: readonly string[];
  /** Those to which nothing goes, as they stood in DNS. */
  refused: readonly string[];
  /** What DNS did not say, or null. For the operator: it names the servers that were asked. */
  failure: string | null;
};

/** More than a host needs, fewer than a zone could give it. */
const addressesPerFamilyMax = 8;

export type AddressSearch = {
  resolver: Pick<Resolver, 'a' | 'aaaa'>;
  /** Whether a connection may be made to an address: `isPublicAddress`, or what the operator allows beside it. */
  mayUseAddress: (address: string) => boolean;
};

/**
 * Looks up a host's addresses. The owner of a domain can point it anywhere, at this machine's neighbours and at its
 * metadata service too: each address is judged by itself.
 *
 * A name that has good addresses and refused ones is called at the good ones. It would be no safer to refuse it, as long as
 * whoever asks connects to an address of this answer and looks up nothing more; and routers that publish a host's private
 * address beside its public one are common.
 */
export async function findHostAddresses(
  { resolver, mayUseAddress }: AddressSearch,
  name: string,
): Promise<HostAddresses> {
  const [ipv6, ipv4] = await Promise.all([resolver.aaaa(name), resolver.a(name)]);
  const sixes = ipv6.kind === 'found' ? ipv6.records.slice(0, addressesPerFamilyMax) : [];
  const fours = ipv4.kind === 'found' ? ipv4.records.slice(0, addressesPerFamilyMax) : [];
  const inTurns = Array.from({ length: addressesPerFamilyMax }, (_, at) => [sixes[at], fours[at]])
    .flat()
    .filter((address) => address !== undefined);
  return {
    addresses: inTurns.filter(mayUseAddress),
    refused: inTurns.filter((address) => !mayUseAddress(address)),
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
    void findHostAddresses({ resolver, mayUseAddress: isPublicAddress }, host).then((found) => {
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
