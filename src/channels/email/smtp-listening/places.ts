/**
 * Who may have a connection while there are not enough for all. Anyone can connect, say nothing, and use as many
 * addresses as they like; so no place is given away for good:
 *
 * - A network, an IPv4 address or a /64 of IPv6, has a limited number of places.
 * - While there are free ones, every client gets one.
 * - When all are taken, a newcomer gets one of those who have most of them, as long as it has fewer itself. What counts
 *   first is what a whole site has, a /24 or a /48, and within a site what a network has: an attacker with
 *   many networks mostly has them in one site. Of those the one that has been waited for longest gives way.
 * - Where all have equally few, only one that has been waited for too long is given away.
 *
 * A client is waited for while it has not got on since its last step. The time in which it waits for us does not count.
 */
import type { Socket } from 'node:net';
import { networkOf, siteOf } from '../../../platform/network.ts';

export type PlaceLimits = {
  placesMax: number;
  /** Smaller, and a large provider that opens a dozen at once is put off; larger, and a few addresses have them all. */
  placesPerNetworkMax: number;
  /** How long a client is waited for before its place goes to another one that is no worse off. */
  patienceMs: number;
};

export type Place = {
  readonly network: string;
  readonly site: string;
  /** Since when a step of the client has been waited for, on the clock that `take` is given. */
  waitedSinceMs: number;
  /** Something of the client is being worked on: its silence is ours. */
  isOurTurn: boolean;
};

export type Places = {
  /**
   * A place for the newcomer, and the connection that had it, if any, which must be ended. Null if there is no place
   * for it.
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

  /** Null where no connection has to give way. */
  const findVictim = (newcomer: Place, nowMs: number): Place | 'none' | null => {
    const all = [...places];
    const ofNetwork = all.filter(({ network }) => network === newcomer.network);
    if (ofNetwork.length >= limits.placesPerNetworkMax)
      return findLongestWaitedFor(ofNetwork.filter((place) => isQuiet(place, nowMs))) ?? 'none';
    if (all.length < limits.placesMax) return null;
    const heldByNetwork = countHeld(all, 'network');
    const heldBySite = countHeld(all, 'site');
    // Each that is taken from another makes holdings more equal, so that no place goes back and forth.
    const lead = (place: Place) =>
      place.site === newcomer.site
        ? heldByNetwork(place) - heldByNetwork(newcomer)
        : heldBySite(place) - heldBySite(newcomer);
    const ofTheLargest = all
      .filter((place) => lead(place) > 1)
      .toSorted(
        (first, second) =>
          heldBySite(second) - heldBySite(first) ||
          heldByNetwork(second) - heldByNetwork(first) ||
          compareWaits(first, second),
      );
    const quiet = all.filter(
      (place) => isQuiet(place, nowMs) && (lead(place) > 0 || place.network === newcomer.network),
    );
    return ofTheLargest[0] ?? findLongestWaitedFor(quiet) ?? 'none';
  };

  return {
    take: ({ remoteAddress = '' }, nowMs) => {
      const place: Place = {
        network: networkOf(remoteAddress),
        site: siteOf(remoteAddress),
        waitedSinceMs: nowMs,
        isOurTurn: false,
      };
      const victim = findVictim(place, nowMs);
      if (victim === 'none') return null;
      if (victim !== null) places.delete(victim);
      places.add(place);
      return { place, displaced: victim };
    },
    leave: (place) => {
      places.delete(place);
    },
  };
}

function findLongestWaitedFor(places: readonly Place[]): Place | undefined {
  return places.toSorted(compareWaits)[0];
}

/** Those that wait for us come last: taking theirs costs a message that was there already. */
function compareWaits(first: Place, second: Place): number {
  return Number(first.isOurTurn) - Number(second.isOurTurn) || first.waitedSinceMs - second.waitedSinceMs;
}

/** How many of the places each one has; `holder` is the network or the site of a place. */
function countHeld(places: readonly Place[], holder: 'network' | 'site'): (place: Place) => number {
  const counts = new Map<string, number>();
  for (const place of places) counts.set(place[holder], (counts.get(place[holder]) ?? 0) + 1);
  return (place) => counts.get(place[holder]) ?? 0;
}
