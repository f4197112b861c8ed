import { isIP } from 'node:net';
import { canonicalName } from '../dns/names.ts';
import type { Resolver } from '../dns/dns.ts';
import { isLoopbackHost } from '../loopback.ts';
import { parseUrl } from '../url.ts';
import type { AllowedHosts } from './allowed-hosts.ts';
import { findHostAddresses } from './host-addresses.ts';

/**
 * Where a URL that a customer gives leads, and whether we go there. The URL is read as it is registered and again before
 * each request, and its addresses are looked up and judged for each request: whoever owns the name may have changed them.
 * A connection is made to one of these addresses, or kept from before to one of them, and redirects are not followed.
 */

export type Destination = {
  /** As it is asked for, however it was spelled. */
  url: string;
  isTls: boolean;
  /** Scheme, host and port, as `host` is written. */
  origin: string;
  /** In lower case, as A-labels, without a final dot; or an address without brackets. */
  host: string;
  port: number;
  /** With the query. */
  path: string;
};

/** To follow the name of what has the URL: `must be …`. */
export type DestinationProblem = { problem: string };

/** What browsers and servers take, and more than anybody writes. */
const urlCharsMax = 2_048;

/** Ports below 1024 are those of the system: mail, SSH, databases of old. Receivers have the two of the web, or a high one. */
const systemPorts = 1_024;
const webPorts = [80, 443];

/**
 * Top-level names that no public name stands below: RFC 6761, RFC 6762, RFC 7686, RFC 9476, ICANN's `internal`, `arpa` with
 * `home.arpa` (RFC 8375), and those that routers and companies took for themselves.
 */
const insideTopLevels = [
  ...['localhost', 'local', 'onion', 'alt', 'invalid', 'internal', 'arpa'],
  ...['localdomain', 'lan', 'home', 'corp', 'intranet', 'private'],
];

/**
 * Reads a URL as what asks for it would, so that every spelling of a host is judged as what it means: `0x7f.1` is 127.0.0.1.
 * https only; http only to this machine, and only where the operator allows that.
 */
export function readDestination(text: string, allowed: AllowedHosts): Destination | DestinationProblem {
  // The parser takes `https:a.example`, and drops tabs and line ends: what people read would be another URL.
  const isPlain = text.length <= urlCharsMax && /^https?:\/\/[^/\\?#\s\p{Cc}][^\\\s\p{Cc}]*$/iu.test(text);
  const url = isPlain ? parseUrl(text) : null;
  if (url === null || url.href.length > urlCharsMax)
    return {
      problem: `must be a URL such as https://example.com/hooks, of at most ${urlCharsMax} characters`,
    };
  if (url.username !== '' || url.password !== '') return { problem: 'must have no user name or password' };
  if (url.hash !== '') return { problem: 'must have no fragment' };

  const isTls = url.protocol === 'https:';
  const host = hostOf(url);
  if (host === null) return { problem: 'must have a host name or an address' };
  const isOwnMachine = isLoopbackHost(host) && isAllowed(host, allowed);
  if (!isTls && !isOwnMachine) return { problem: 'must be an https URL' };
  if (!isAllowed(host, allowed)) return { problem: 'must have a host on the public Internet' };

  const port = url.port === '' ? (isTls ? 443 : 80) : Number(url.port);
  if (port < systemPorts && !webPorts.includes(port))
    return { problem: `must have port ${webPorts.join(', ')}, or one from ${systemPorts} on` };
  const origin = `${url.protocol}//${isIP(host) === 6 ? `[${host}]` : host}${url.port === '' ? '' : `:${url.port}`}`;
  return { url: url.href, isTls, origin, host, port, path: `${url.pathname}${url.search}` };
}

function hostOf({ hostname }: URL): string | null {
  const bare = hostname.replace(/^\[(.*)\]$/, '$1');
  return isIP(bare) === 0 ? canonicalName(bare) : bare;
}

function isAllowed(host: string, allowed: AllowedHosts): boolean {
  if (isIP(host) !== 0) return allowed.mayUse(host, host);
  return allowed.isNamed(host) || !isInsideName(host);
}

/** Whether a name means something in a network of one's own only. Of one label alone, it does everywhere. */
function isInsideName(name: string): boolean {
  const labels = name.split('.');
  return labels.length < 2 || insideTopLevels.includes(labels.at(-1) ?? '');
}

/** RFC 6761 §6.3: no server is asked for it. */
const loopbackAddresses = ['127.0.0.1', '::1'];

export type GuardTools = { resolver: Pick<Resolver, 'a' | 'aaaa'>; allowed: AllowedHosts };

/**
 * The addresses at which a host may be called now, one at least; or, in a sentence, why there are none. A name that has
 * none and one whose addresses are all refused are told in the same words: otherwise a stranger could ask our name servers
 * which names there are inside.
 */
export async function findDestinationAddresses(
  { resolver, allowed }: GuardTools,
  { host }: Destination,
): Promise<readonly string[] | { reason: string }> {
  const mayUseAddress = (address: string) => allowed.mayUse(host, address);
  if (isIP(host) !== 0 || host === 'localhost') {
    const addresses = (host === 'localhost' ? loopbackAddresses : [host]).filter(mayUseAddress);
    return addresses.length > 0 ? addresses : { reason: noAddress(host) };
  }
  const { addresses, refused, failure } = await findHostAddresses({ resolver, mayUseAddress }, host);
  if (addresses.length > 0) return addresses;
  // What failed is told to nobody here: it names our name servers.
  return {
    reason:
      failure !== null && refused.length === 0
        ? `The name servers of ${host} did not answer.`
        : noAddress(host),
  };
}

function noAddress(host: string): string {
  return `No public address was found for ${host}.`;
}
