import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';

const nameLengthMax = 253;
const labelLengthMax = 63;

/**
 * A domain name in the form in which we compare and give it: lower case, no final dot. Null if the text is none
 * (RFC 1035 section 2.3.4), or holds anything but visible ASCII: spaces, NUL and line ends have no place in what is
 * later written into logs, rows and SMTP commands. Underscores are allowed, as in `_dmarc`.
 */
export function canonicalName(text: string): string | null {
  if (text.length > nameLengthMax + 1) return null;
  const name = text.endsWith('.') ? text.slice(0, -1) : text;
  if (name.length > nameLengthMax || !/^[!-~]+$/.test(name)) return null;
  const isWhole = name.split('.').every((label) => label.length > 0 && label.length <= labelLengthMax);
  return isWhole ? name.toLowerCase() : null;
}

/**
 * The name under which an address has its PTR records (RFC 1035 section 3.5, RFC 3596 section 2.5), or null if the
 * text is no address. An IPv4 address inside an IPv6 one (`::ffff:192.0.2.1`) has those of the IPv4 address.
 */
export function reverseName(address: string): string | null {
  if (isIP(address) === 0 || address.includes('%')) return null;
  const parsed = ipaddr.process(address);
  const bytes = parsed.toByteArray().reverse();
  if (parsed.kind() === 'ipv4') return `${bytes.join('.')}.in-addr.arpa`;
  const nibbles = bytes.flatMap((byte) => [byte & 0xf, byte >> 4]);
  return `${nibbles.map((nibble) => nibble.toString(16)).join('.')}.ip6.arpa`;
}
