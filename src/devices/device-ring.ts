import { createBatcher } from '../platform/batcher.ts';
import type { Clock } from '../platform/clock.ts';
import { overloaded } from '../platform/http/errors.ts';
import { createLocalRateLimiter } from '../platform/http/local-rate-limit.ts';
import type { RateVerdict } from '../platform/http/rate-limit.ts';
import type { CallingDevice } from '../platform/http/route.ts';
import type { Database } from '../platform/postgres/database.ts';
import { sha256 } from '../platform/secrets.ts';
import { hasFormOfDeviceSecret } from './device-secret.ts';
import { findDevicesBySecret } from './store.ts';

export type AdmittedDevice = { organizationId: string; device: CallingDevice; rate: RateVerdict };

/** Tells whose device has a secret, and counts its requests. */
export type DeviceRing = {
  /**
   * Null if no device has the secret. Rejects with a PublicError (503) when more secrets wait than could be looked up,
   * and with a DatabaseUnavailableError.
   */
  find: (secret: string) => Promise<AdmittedDevice | null>;
};

/**
 * Secrets that share a look-up. There is one look-up at a time, whatever comes: wrong secrets take no more than one
 * connection of the database. Networks are not told apart, since a million phones may share the addresses of their
 * carrier.
 */
const lookedUpMax = 500;
/** Beyond them 503: a second's worth of look-ups or so. */
const waitingMax = 2_000;
/** An app that collects its reports needs one in a minute. More would let a device that went mad take the database. */
const requestsPerMinute = 60;
/** About 10 MB. */
const devicesMax = 100_000;

export const deviceSecretHelp =
  'The secret of the device is missing or wrong. Send the device_secret of its registration as "Authorization: Bearer <secret>".';

export function createDeviceRing(tools: { database: Database; clock: Clock }): DeviceRing {
  const limiter = createLocalRateLimiter(tools, { limit: requestsPerMinute, subjectsMax: devicesMax });
  const lookUps = createBatcher({
    itemsMax: lookedUpMax,
    concurrency: 1,
    run: (digests: Buffer[]) => findDevicesBySecret(tools.database, digests),
  });
  return {
    find: async (secret) => {
      if (!hasFormOfDeviceSecret(secret)) return null;
      if (lookUps.size() >= waitingMax)
        throw overloaded('Too many secrets of devices are being checked at the moment.');
      const found = await lookUps.add(sha256(secret));
      if (found === null) return null;
      const { organizationId, ...device } = found;
      return { organizationId, device, rate: limiter.count(device.id) };
    },
  };
}
