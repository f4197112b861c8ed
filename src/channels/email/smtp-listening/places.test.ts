import fc from 'fast-check';
import { expect, test } from 'vitest';
import { networkOf, siteOf } from '../../../platform/network.ts';
import { createPlaces, type Place } from './places.ts';

test('whatever clients come and go, the limits hold, and none loses a place to one that has as many and gets on no better', () => {
  const arrival = fc.record({
    site: fc.constantFrom('192.0.2.', '198.51.100.', '2001:db8:1:', '2001:db8:2:'),
    host: fc.nat(6),
    afterMs: fc.nat(20),
    leaves: fc.nat(40),
  });
  fc.assert(
    fc.property(fc.array(arrival, { maxLength: 120 }), (arrivals) => {
      const places = createPlaces({ placesMax: 12, placesPerNetworkMax: 5, patienceMs: 50 });
      const held = new Set<Place>();
      let nowMs = 0;
      for (const { site, host, afterMs, leaves } of arrivals) {
        nowMs += afterMs;
        const leaving = [...held][leaves];
        if (leaving !== undefined) {
          places.leave(leaving);
          held.delete(leaving);
        }
        const remoteAddress = site.includes(':') ? `${site}${host}::1` : `${site}${host}`;
        const [network, wide] = [networkOf(remoteAddress), siteOf(remoteAddress)];
        const before = [...held];
        const countOf = (key: 'network' | 'site', value: string) =>
          before.filter((place) => place[key] === value).length;
        /** How many more places than the newcomer a holder has, in the site that they share or as sites. */
        const lead = (place: Place) =>
          place.site === wide
            ? countOf('network', place.network) - countOf('network', network)
            : countOf('site', place.site) - countOf('site', wide);
        const taken = places.take({ remoteAddress }, nowMs);
        if (taken === null) {
          // No client is turned away that has fewer places than another one could give.
          const isAtItsLimit = countOf('network', network) >= 5;
          expect(isAtItsLimit || Math.max(...before.map(lead)) <= 1).toBe(true);
          continue;
        }
        const { place, displaced } = taken;
        if (displaced !== null) {
          expect(held.delete(displaced)).toBe(true);
          const isQuiet = nowMs - displaced.waitedSinceMs >= 50;
          expect(lead(displaced) > 1 || (isQuiet && lead(displaced) >= 0)).toBe(true);
        }
        held.add(place);
        expect(held.size).toBeLessThanOrEqual(12);
        expect([...held].filter((each) => each.network === network).length).toBeLessThanOrEqual(5);
      }
    }),
  );
});
