import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createPlaces, networkOf, type Place } from './places.ts';

test('all of a /64 is one network, and each IPv4 address is one', () => {
  expect(networkOf('2001:db8:1:2::1')).toBe(networkOf('2001:db8:1:2:ffff:ffff:ffff:ffff'));
  expect(networkOf('2001:db8:1:2::1')).not.toBe(networkOf('2001:db8:1:3::1'));
  expect(networkOf('::ffff:192.0.2.1')).toBe(networkOf('192.0.2.1'));
  expect(networkOf('192.0.2.1')).not.toBe(networkOf('192.0.2.2'));
});

test('whoever comes and goes, the limits hold, and one place each is taken from nobody who still talks', () => {
  const arrival = fc.record({ host: fc.nat(6), afterMs: fc.nat(20), leaves: fc.nat(40) });
  fc.assert(
    fc.property(fc.array(arrival, { maxLength: 120 }), (arrivals) => {
      const places = createPlaces({ placesMax: 12, placesPerNetworkMax: 5, patienceMs: 50 });
      const held = new Set<Place>();
      const countOf = (network: string) => [...held].filter((place) => place.network === network).length;
      let nowMs = 0;
      for (const { host, afterMs, leaves } of arrivals) {
        nowMs += afterMs;
        const leaving = [...held][leaves];
        if (leaving !== undefined) {
          places.leave(leaving);
          held.delete(leaving);
        }
        const remoteAddress = `192.0.2.${host}`;
        const before = countOf(remoteAddress);
        const taken = places.take({ remoteAddress }, nowMs);
        if (taken === null) {
          // Nobody is turned away who has fewer places than anybody has to give.
          const largest = Math.max(...[...held].map(({ network }) => countOf(network)));
          expect(before >= 5 || largest <= before + 1).toBe(true);
          continue;
        }
        const { place, displaced } = taken;
        if (displaced !== null) {
          expect(held.delete(displaced)).toBe(true);
          const isQuiet = nowMs - displaced.waitedSinceMs >= 50;
          expect(isQuiet || countOf(displaced.network) > before).toBe(true);
        }
        held.add(place);
        expect(held.size).toBeLessThanOrEqual(12);
        expect(countOf(remoteAddress)).toBeLessThanOrEqual(5);
      }
    }),
  );
});
