import ipaddr from 'ipaddr.js';

/**
 * The network of an address: an IPv4 address is its own network, an IPv6 address belongs to its /64 (RFC 4291 §2.5.1).
 * No client is given less than a /64, so that if addresses were counted one by one, a single client would have 2^64 of
 * everything. IPv4-mapped IPv6 addresses, as a dual-stack socket reports them, are IPv4. Text that is no address is
 * returned as it is.
 */
export function networkOf(address: string): string {
  return prefixOf(address, 32, 64);
}

/**
 * The site that a network belongs to: the /48 of an IPv6 address, which one customer of a provider may be given
 * (RFC 6177), and the /24 of an IPv4 address, the least that is routed by itself.
 */
export function siteOf(address: string): string {
  return prefixOf(address, 24, 48);
}

function prefixOf(address: string, ipv4Bits: number, ipv6Bits: number): string {
  // A zone (RFC 4007 §11) names an interface of this machine, and says nothing about the client.
  const withoutZone = address.replace(/%.*$/s, '');
  if (!ipaddr.isValid(withoutZone)) return address;
  const parsed = ipaddr.process(withoutZone);
  if (parsed.kind() === 'ipv6') {
    const prefix = ipaddr.IPv6.networkAddressFromCIDR(`${parsed.toString()}/${ipv6Bits}`);
    return `${prefix.toString()}/${ipv6Bits}`;
  }
  const prefix = ipaddr.IPv4.networkAddressFromCIDR(`${parsed.toString()}/${ipv4Bits}`);
  return `${prefix.toString()}/${ipv4Bits}`;
}

/** An address as PostgreSQL's `inet` takes it: IPv4 where it is mapped to IPv6, and without a zone; null if it is none. */
export function plainAddress(address: string): string | null {
  const withoutZone = address.replace(/%.*$/s, '');
  return ipaddr.isValid(withoutZone) ? ipaddr.process(withoutZone).toString() : null;
}

/** An address or a CIDR range (RFC 4632 §3.1, RFC 4291 §2.3) as the range that it means; null if it is neither. */
export function parseNetwork(text: string): string | null {
  try {
    const [address, bits] = text.includes('/') ? ipaddr.parseCIDR(text) : rangeOf(ipaddr.process(text));
    // `010.0.0.1` and `10.1` are read in different ways by different programs.
    if (!text.includes(':') && !ipaddr.IPv4.isValidFourPartDecimal(text.replace(/\/.*$/s, ''))) return null;
    const family = address.kind() === 'ipv4' ? ipaddr.IPv4 : ipaddr.IPv6;
    return `${family.networkAddressFromCIDR(`${address.toString()}/${bits}`).toString()}/${bits}`;
  } catch {
    return null;
  }
}

function rangeOf(address: ipaddr.IPv4 | ipaddr.IPv6): [ipaddr.IPv4 | ipaddr.IPv6, number] {
  return [address, address.kind() === 'ipv4' ? 32 : 128];
}

/** Whether an address belongs to one of these ranges, each as `parseNetwork` writes it. What is no address does not. */
export function createNetworkMatch(networks: readonly string[]): (address: string) => boolean {
  const ranges = networks.map((network) => ipaddr.parseCIDR(network));
  return (address) => {
    const plain = plainAddress(address);
    if (plain === null) return false;
    const parsed = ipaddr.parse(plain);
    return ranges.some((range) => parsed.kind() === range[0].kind() && parsed.match(range));
  };
}
