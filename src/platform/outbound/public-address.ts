import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';

/**
 * The kinds of addresses that a stranger may name. Those of the public Internet are called; those of a network of one's own
 * if the operator allows it; and those at which a cloud tells a machine its secrets never.
 */

/** IANA gives out global unicast IPv6 addresses from here alone (RFC 3513 §4). */
const globalUnicast = ipaddr.parseCIDR('2000::/3');

/** RFC 6052 §2.1: the well-known prefix. The local one (RFC 8215) has its IPv4 address wherever its owner likes. */
const wellKnownNat64 = ipaddr.parseCIDR('64:ff9b::/96');

/**
 * Where clouds answer their machines outside of the link-local ranges, in the order of Azure (which looks public:
 * learn.microsoft.com, "What is IP address 168.63.129.16?"), Alibaba Cloud, AWS and Google Cloud.
 */
const metadataAddresses = ['168.63.129.16', '100.100.100.200', 'fd00:ec2::254', 'fd20:ce::254'];

/** Of networks that are nobody else's: RFC 1918, RFC 4193, RFC 6598, and the machine itself. */
const insideRanges = ['private', 'uniqueLocal', 'carrierGradeNat', 'loopback'];

/** Whether an address is one of the public Internet, also where IPv4 is wrapped in IPv6. */
export function isPublicAddress(address: string): boolean {
  if (isIP(address) === 0 || isIpv4Compatible(address)) return false;
  const target = targetOf(address);
  if (isMetadata(target)) return false;
  return target.range() === 'unicast' && (target.kind() === 'ipv4' || target.match(globalUnicast));
}

/** Whether an address is one of a network of one's own, or of the machine, and tells no secrets of it. */
export function isInsideAddress(address: string): boolean {
  if (isIP(address) === 0 || isIpv4Compatible(address)) return false;
  const target = targetOf(address);
  return insideRanges.includes(target.range()) && !isMetadata(target);
}

/** Whether an address is one at which a cloud tells a machine its secrets: all link-local ones are taken for such. */
export function isMetadataAddress(address: string): boolean {
  return isIP(address) !== 0 && isMetadata(targetOf(address));
}

function isMetadata(target: ipaddr.IPv4 | ipaddr.IPv6): boolean {
  return target.range() === 'linkLocal' || metadataAddresses.includes(target.toString());
}

/** Where a packet to an address arrives. */
function targetOf(address: string): ipaddr.IPv4 | ipaddr.IPv6 {
  const parsed = ipaddr.parse(address);
  return embeddedIpv4(parsed) ?? parsed;
}

/** RFC 4291 §2.5.5.1: long given up. The library reads `::1.2.3.4` as if it were `::ffff:1.2.3.4`; systems do not. */
function isIpv4Compatible(address: string): boolean {
  return /^::\d+\./.test(address);
}

/** Whether an address is always the caller's own (loopback, unspecified): a name that points there has no mail host. */
export function isSelfAddress(address: string): boolean {
  if (isIP(address) === 0) return false;
  const range = targetOf(address).range();
  return range === 'loopback' || range === 'unspecified';
}

/** The IPv4 address in an IPv6 one of a kind that leads to it, or null. */
function embeddedIpv4(address: ipaddr.IPv4 | ipaddr.IPv6): ipaddr.IPv4 | null {
  if (!('parts' in address)) return null;
  const octets = address.toByteArray();
  if (address.range() === 'ipv4Mapped') return new ipaddr.IPv4(octets.slice(12));
  // RFC 3056 §2: 2002:, the IPv4 address, and any subnet below it.
  if (address.range() === '6to4') return new ipaddr.IPv4(octets.slice(2, 6));
  if (address.match(wellKnownNat64)) return new ipaddr.IPv4(octets.slice(12));
  return null;
}
