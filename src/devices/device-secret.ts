import { randomBytes } from 'node:crypto';
import { sha256 } from '../platform/secrets.ts';

const pattern = /^pds_[\w-]{43}$/;

/** Whether it may be the secret of a device. What is none needs no look-up. */
export function hasFormOfDeviceSecret(text: string): boolean {
  return pattern.test(text);
}

/** By it a device proves that its reports are its own: 256 random bits, of which only the digest is stored. */
export function generateDeviceSecret(): { secret: string; digest: Buffer } {
  const secret = `pds_${randomBytes(32).toString('base64url')}`;
  return { secret, digest: sha256(secret) };
}
