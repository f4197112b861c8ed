/**
 * Who may have a connection while there are not enough for all. Anybody can connect, say nothing, and have as many
 * addresses as an attack has; so that a place is never anybody's for good:
 *
 * - A network, an IPv4 address or a /64 of IPv6, has so many places at most.
 * - While there are free ones, everybody gets one.
 * - When all are taken, a newcomer gets one of the network that has most of them, as long as it has fewer itself; of
 *   those the one that has been waited for longest. Where all have equally few, only one that has been waited for
 *   too long is given away.
 *
 * Waited for is a client that has not ended a line since our last answer. One that waits for us is not.
 */
import type { Socket } from 'node:net';
import ipaddr from 'ipaddr.js';

export type PlaceLimits = {
  placesMax: number;
  /** Smaller, and a large provider that opens a dozen at once is put off; larger, and a few addresses have them all. */
  placesPerNetworkMax: number;
  /** For so long a client is waited for before its place goes to another one that is no worse off. */
  patienceMs: number;
};

export type Place = {
  readonly network: string;
  /** Since when something of the client has been waited for, on the clock that `take` is given. */
  waitedSinceMs: number;
  /** Something of the client is being worked on: its silence is ours. */
  isOurTurn: boolean;
};

export type Places = {
  /**
   * A place for the newcomer and whose it was, if it was anybody's: that connection must be ended. Null where there is
   * none to be had.
   */
  take: (
    socket: Pick<Socket, 'remoteAddress'>,
    nowMs: number,
  ) => { place: Place; displaced: Place | null } | null;
  /** Of a connection that has ended. Those that were displaced are not counted any more. */
  leave: (place: Place) => void;
};

export function createPlaces(limits: PlaceLimits): Places {
  const places = new Set<Place>();

  const isQuiet = (place: Place, nowMs: number) =>
    !place.isOurTurn && nowMs - place.waitedSinceMs >= limits.patienceMs;

  /** Null where nobody has to give way. */
  const findVictim = (network: string, nowMs: number): Place | 'none' | null => {
    const all = [...places];
    const own = all.filter((place) => place.network === network);
    if (own.length >= limits.placesPerNetworkMax)
      return findLongestWaitedFor(own.filter((place) => isQuiet(place, nowMs))) ?? 'none';
    if (all.length < limits.placesMax) return null;
    const counts = countByNetwork(all);
    const largest = Math.max(...counts.values());
    const candidates = all.filter((place) => {
      const count = counts.get(place.network) ?? 0;
      if (count > own.length + 1) return count === largest;
      return isQuiet(place, nowMs) && (count > own.length || place.network === network);
    });
    return findLongestWaitedFor(candidates) ?? 'none';
  };

  return {
    take: ({ remoteAddress }, nowMs) => {
      const network = networkOf(remoteAddress ?? '');
      const victim = findVictim(network, nowMs);
      if (victim === 'none') return null;
      if (victim !== null) places.delete(victim);
      const place: Place = { network, waitedSinceMs: nowMs, isOurTurn: false };
      places.add(place);
      return { place, displaced: victim };
    },
    leave: (place) => {
      places.delete(place);
    },
  };
}

/** Those that wait for us come last: taking theirs costs a message that was there already. */
function findLongestWaitedFor(places: readonly Place[]): Place | undefined {
  return places.toSorted(
    (first, second) =>
      Number(first.isOurTurn) - Number(second.isOurTurn) || first.waitedSinceMs - second.waitedSinceMs,
  )[0];
}

function countByNetwork(places: readonly Place[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const { network } of places) counts.set(network, (counts.get(network) ?? 0) + 1);
  return counts;
}

/** An IPv4 address, or the /64 of an IPv6 address: less than that nobody is given, so that it says nothing of who it is. */
export function networkOf(address: string): string {
  if (!ipaddr.isValid(address)) return address;
  const parsed = ipaddr.process(address);
  return parsed.kind() === 'ipv4'
    ? parsed.toString()
    : ipaddr.IPv6.networkAddressFromCIDR(`${parsed.toString()}/64`).toString();
}
