import { ECDH } from 'node:crypto';

/** What a browser gives with its subscription, so that only it can read what the push service carries (RFC 8291). */
export type SubscriptionKeys = {
  /** A point of P-256: 65 octets, uncompressed. */
  publicKey: Buffer;
  /** 16 octets. */
  authSecret: Buffer;
};

const publicKeyBytes = 65;
const authSecretBytes = 16;
const uncompressed = 0x04;

/** Browsers write base64url without padding; some libraries write plain base64. */
const base64Pattern = /^[A-Za-z0-9_+/-]{1,128}={0,2}$/;

/** Reads `p256dh` and `auth` of a subscription, both in base64url; says which of them is none. */
export function readSubscriptionKeys(subscription: {
  p256dh: string;
  auth: string;
}): SubscriptionKeys | 'bad_p256dh' | 'bad_auth' {
  const publicKey = readPublicKey(subscription.p256dh);
  if (publicKey === null) return 'bad_p256dh';
  const authSecret = readAuthSecret(subscription.auth);
  if (authSecret === null) return 'bad_auth';
  return { publicKey, authSecret };
}

/**
 * The same of keys that were read once and stored since; null if they are none. Whether the point is on the curve is left
 * to the encryption, which throws if it is not: asked here as well, it would take 70 µs more of every push.
 */
export function readStoredKeys({ p256dh, auth }: { p256dh: string; auth: string }): SubscriptionKeys | null {
  const publicKey = decodeBase64(p256dh);
  const authSecret = readAuthSecret(auth);
  return publicKey !== null && hasFormOfKey(publicKey) && authSecret !== null
    ? { publicKey, authSecret }
    : null;
}

/** Reads `p256dh`; null if it is none. */
export function readPublicKey(text: string): Buffer | null {
  const key = decodeBase64(text);
  return key !== null && isPublicKey(key) ? key : null;
}

/** Reads `auth`; null if it is none. */
export function readAuthSecret(text: string): Buffer | null {
  const secret = decodeBase64(text);
  return secret?.length === authSecretBytes ? secret : null;
}

function decodeBase64(text: string): Buffer | null {
  return base64Pattern.test(text) ? Buffer.from(text, 'base64') : null;
}

/**
 * RFC 8291 §7: that the point is on the curve MUST be verified, or answers to chosen points would tell our private key.
 * Node takes compressed points too, so that length and form are asked first.
 */
function isPublicKey(key: Buffer): boolean {
  if (!hasFormOfKey(key)) return false;
  try {
    ECDH.convertKey(key, 'prime256v1');
    return true;
  } catch {
    return false;
  }
}

function hasFormOfKey(key: Buffer): boolean {
  return key.length === publicKeyBytes && key[0] === uncompressed;
}
