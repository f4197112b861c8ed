import { LRUCache } from 'lru-cache';
import type { Clock } from '../../../../platform/clock.ts';

/** Which credentials work: others may be of the wrong app, and get the answer of a dead token for every device. */
export type ProvenCredentials = {
  /** A push was accepted. */
  note: (credentialsId: string) => void;
  /** Whether one was accepted within the last hour. */
  isProven: (credentialsId: string) => boolean;
};

/** Shorter takes tokens for alive that are dead, where few pushes are sent; longer retires devices by keys revoked since. */
const provenForMs = 3_600_000;

/** Fewer would forget, and pushes to dead tokens be tried again until their end. An entry has a tenth of a kilobyte. */
const credentialsMax = 10_000;

export function createProvenCredentials(clock: Clock): ProvenCredentials {
  const provenAtMs = new LRUCache<string, number>({ max: credentialsMax });
  return {
    note: (id) => {
      provenAtMs.set(id, clock.monotonicMs());
    },
    isProven: (id) => clock.monotonicMs() - (provenAtMs.get(id) ?? -Infinity) < provenForMs,
  };
}
