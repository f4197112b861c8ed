import { createECDH, createPrivateKey, type JsonWebKey, type KeyObject } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import type { Clock } from '../../../platform/clock.ts';
import { signJwt } from '../jwt.ts';

/**
 * Who sends, as push services want to know it (RFC 8292). A subscription is bound to the public key for life (§4): with
 * another pair, every browser has to subscribe again.
 */
export type VapidKeys = {
  /** A point of P-256, uncompressed: 65 octets in base64url. Browsers take it as `applicationServerKey`. */
  publicKey: string;
  /** 32 octets in base64url. */
  privateKey: string;
};

/**
 * Not by `generateKeyPairSync(…).privateKey.export({ format: 'jwk' })`: Node.js 20 holds the key's lock while it makes the
 * strings of a JWK, and if they set off a garbage collection that takes away what has generated the key, this waits for the
 * same lock, and the process stands still for ever.
 */
export function generateVapidKeys(): VapidKeys {
  const pair = createECDH('prime256v1');
  const publicKey = pair.generateKeys('base64url');
  // Leading zeros are left out of it.
  const digits = pair.getPrivateKey();
  const privateKey = Buffer.concat([Buffer.alloc(privateKeyBytes - digits.length), digits]);
  return { publicKey, privateKey: privateKey.toString('base64url') };
}

const privateKeyBytes = 32;

/** RFC 8292 §2: 24 hours at most, and clocks differ. Apple refuses what is beyond a day by its own. */
const tokenLifeMs = 12 * 3_600_000;

/** The same token for as long as it is good: §5 encourages it, since services can then remember that it is. */
const renewalMs = 6 * 3_600_000;

/** One an organization and push service. Fewer would sign again and again (40 µs each); one has half a kilobyte. */
const tokensMax = 10_000;

export type VapidTokens = {
  /**
   * The value of `authorization` for requests to an origin. `subject` is who sends, as `isVapidSubject` takes it; null
   * leaves it out. Throws if the keys are none.
   */
  authorizationFor: (sender: VapidKeys & { subject: string | null }, origin: string) => string;
};

export function createVapidTokens(clock: Clock): VapidTokens {
  const made = new LRUCache<string, { authorization: string; madeAtMs: number }>({ max: tokensMax });
  return {
    authorizationFor: (sender, origin) => {
      const subject = sender.subject ?? '';
      const name = `${sender.publicKey} ${subject} ${origin}`;
      const known = made.get(name);
      // By the wall clock, since that is what `exp` is compared with, and it may be set.
      const ageMs = clock.nowMs() - (known?.madeAtMs ?? -Infinity);
      if (known !== undefined && ageMs >= 0 && ageMs < renewalMs) return known.authorization;
      const madeAtMs = clock.nowMs();
      const token = signJwt(
        { algorithm: 'ES256', key: privateKeyOf(sender), keyId: null },
        {
          aud: origin,
          exp: Math.floor((madeAtMs + tokenLifeMs) / 1_000),
          ...(subject !== '' && { sub: subject }),
        },
      );
      const authorization = `vapid t=${token}, k=${sender.publicKey}`;
      made.set(name, { authorization, madeAtMs });
      return authorization;
    },
  };
}

function privateKeyOf({ publicKey, privateKey }: VapidKeys): KeyObject {
  const point = Buffer.from(publicKey, 'base64url');
  const key: JsonWebKey = {
    kty: 'EC',
    crv: 'P-256',
    d: privateKey,
    x: point.toString('base64url', 1, 33),
    y: point.toString('base64url', 33, 65),
  };
  return createPrivateKey({ key, format: 'jwk' });
}
