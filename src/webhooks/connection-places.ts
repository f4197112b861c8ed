import { createShares, type Share } from '../platform/shares.ts';
import { connectionsMax } from './connections.ts';

/**
 * How many connections endpoints have while they are told. A receiver that says nothing holds one for a quarter of a minute,
 * so that connections which are divided by organizations alone would all be with those of its endpoints that hang. The first
 * connection of an endpoint comes with its turn, and is its own: it is told, if one event after the other, whatever others
 * hold. Further ones make it faster; they are had for a round at a time, and organizations have shares of them.
 */
export type ConnectionPlaces = {
  /** For as long as an endpoint is told; null if its organization has its share. */
  takeFirst: (organizationId: string) => Share | null;
  /** As many as are wanted, or as there are. */
  takeFurther: (organizationId: string, wanted: number) => { count: number; release: () => void };
};

/** Endpoints that a process tells at once. */
export const endpointsMax = connectionsMax / 2;

export function createConnectionPlaces(): ConnectionPlaces {
  const first = createShares(endpointsMax);
  const further = createShares(connectionsMax - endpointsMax);
  return {
    takeFirst: (organizationId) => first.take(organizationId, 1),
    takeFurther: (organizationId, wanted) => {
      const shares: Share[] = [];
      while (shares.length < wanted) {
        const share = further.take(organizationId, 1);
        if (share === null) break;
        shares.push(share);
      }
      return {
        count: shares.length,
        release: () => {
          for (const share of shares) share.release();
        },
      };
    },
  };
}
