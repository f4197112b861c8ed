import { randomBytes } from 'node:crypto';
import { crc32 } from 'node:zlib';

/**
 * API keys as text: `pst_`, 256 random bits in base62, and six more characters that are the CRC-32 of all before them,
 * as in the tokens of GitHub. A mistyped or invented key is refused without a look-up; the checksum protects
 * no secret, since anyone can compute it.
 */

const prefix = 'pst_';
const randomLength = 43;
const checksumLength = 6;
const pattern = new RegExp(`^${prefix}[0-9A-Za-z]{${randomLength + checksumLength}}$`);

export function generateApiKey(): string {
  const unchecked = `${prefix}${toBase62(BigInt(`0x${randomBytes(32).toString('hex')}`), randomLength)}`;
  return withChecksum(unchecked);
}

/** Whether it may be a key of an installation. What is none needs no look-up. */
export function hasFormOfApiKey(text: string): boolean {
  if (!pattern.test(text)) return false;
  const unchecked = text.slice(0, prefix.length + randomLength);
  return text === withChecksum(unchecked);
}

function withChecksum(unchecked: string): string {
  return `${unchecked}${toBase62(BigInt(crc32(unchecked)), checksumLength)}`;
}

const base62 = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';

function toBase62(number: bigint, length: number): string {
  let digits = '';
  for (let rest = number; rest > 0n; rest /= 62n) digits = base62.charAt(Number(rest % 62n)) + digits;
  return digits.padStart(length, '0');
}
