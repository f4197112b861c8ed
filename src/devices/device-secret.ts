import { randomBytes } from 'node:crypto';
import { sha256 } from '../platform/secrets.ts';

/** By it a device proves that its reports are its own: 256 random bits, of which only the digest is stored. */
export function generateDeviceSecret(): { secret: string; digest: Buffer } {
  const secret = `pds_${randomBytes(32).toString('base64url')}`;
  return { secret, digest: sha256(secret) };
}
