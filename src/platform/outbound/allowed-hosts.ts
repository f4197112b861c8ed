import { LRUCache } from 'lru-cache';
import { createNetworkMatch, parseNetwork } from '../network.ts';
import { isInsideAddress, isMetadataAddress, isPublicAddress } from './public-address.ts';

/** What the operator opens of the network inside for connections to hosts that customers name. */
export type AllowedHosts = {
  /** Whether a host is named: its name is no reason to refuse it. In lower case, without a final dot. */
  isNamed: (host: string) => boolean;
  /** Whether a connection to this host may be made at this address. */
  mayUse: (host: string, address: string) => boolean;
};

/** Judging takes 10 µs, and each attempt asks for the same few addresses again. */
const judgedMax = 1_000;

const hostPattern = /^(?:\*\.)?[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?$/;

/** Whether a text is a host (`hooks.internal`, `*.internal` for all names below one), an address, or a CIDR range. */
export function isAllowedHostEntry(text: string): boolean {
  return parseNetwork(text) !== null || (hostPattern.test(text) && !/^[\d.]+$/.test(text));
}

/**
 * `entries` are as `isAllowedHostEntry` takes them. A host that is named may be at any address inside, and whatever is in a
 * range may be called by any name. What a cloud tells a machine is opened by neither.
 */
export function createAllowedHosts(entries: readonly string[]): AllowedHosts {
  const networks = entries.map(parseNetwork).filter((network) => network !== null);
  const names = new Set(entries.filter((entry) => parseNetwork(entry) === null));
  const suffixes = [...names].filter((name) => name.startsWith('*.')).map((name) => name.slice(1));
  const isInNetwork = createNetworkMatch(networks);
  const isNamed = (host: string) => names.has(host) || suffixes.some((suffix) => host.endsWith(suffix));
  const judge = (host: string, address: string): boolean => {
    if (isPublicAddress(address)) return true;
    if (isMetadataAddress(address)) return false;
    return isInNetwork(address) || (isNamed(host) && isInsideAddress(address));
  };
  // What is judged so stays so: nothing is looked up for it.
  const judged = new LRUCache<string, boolean>({ max: judgedMax });
  return {
    isNamed,
    mayUse: (host, address) => {
      const key = `${host} ${address}`;
      const known = judged.get(key);
      if (known !== undefined) return known;
      const mayUse = judge(host, address);
      judged.set(key, mayUse);
      return mayUse;
    },
  };
}
