import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createHmac,
  createSecretKey,
  hkdfSync,
  randomBytes,
  timingSafeEqual,
} from 'node:crypto';

/** Keys derived from the installation's one secret, a separate one for each purpose (RFC 5869). */
export type Secrets = {
  /** AES-256-GCM under a fresh nonce; `context` is authenticated with it and must be the same to decrypt. */
  encrypt: (plaintext: Uint8Array, context: string) => Buffer;
  /** Throws if the bytes, the context or the secret are not those of `encrypt`. */
  decrypt: (sealed: Uint8Array, context: string) => Buffer;
  /** HMAC-SHA-256: equal inputs can be matched, but nothing can be read back or guessed without the secret. */
  keyedHash: (text: string, purpose: string) => Buffer;
};

/** 256 bits in hexadecimal or base64 are the usual; anything shorter than this can be guessed. */
export const secretLengthMin = 32;

const nonceBytes = 12;
const tagBytes = 16;

export function createSecrets(secret: string): Secrets {
  if (secret.length < secretLengthMin) {
    throw new Error(`POSTILLION_SECRET must have at least ${secretLengthMin} characters`);
  }
  const encryptionKey = deriveKey(secret, 'encryption at rest');
  // As a key object, and the text in one piece: 4.6 µs a hash instead of 6.2.
  const hashKey = createSecretKey(deriveKey(secret, 'keyed hashes'));

  return {
    encrypt: (plaintext, context) => {
      const nonce = randomBytes(nonceBytes);
      const cipher = createCipheriv('aes-256-gcm', encryptionKey, nonce);
      cipher.setAAD(Buffer.from(context));
      return Buffer.concat([nonce, cipher.update(plaintext), cipher.final(), cipher.getAuthTag()]);
    },
    decrypt: (sealed, context) => {
      const nonce = sealed.subarray(0, nonceBytes);
      const tag = sealed.subarray(sealed.length - tagBytes);
      const decipher = createDecipheriv('aes-256-gcm', encryptionKey, nonce, { authTagLength: tagBytes });
      decipher.setAAD(Buffer.from(context));
      decipher.setAuthTag(tag);
      const plaintext = decipher.update(sealed.subarray(nonceBytes, sealed.length - tagBytes));
      decipher.final();
      return plaintext;
    },
    keyedHash: (text, purpose) => createHmac('sha256', hashKey).update(`${purpose}\0${text}`).digest(),
  };
}

export function sha256(data: string | Uint8Array): Buffer {
  return createHash('sha256').update(data).digest();
}

/** In constant time; digests of different length are unequal. */
export function isEqualDigest(first: Uint8Array, second: Uint8Array): boolean {
  return first.length === second.length && timingSafeEqual(first, second);
}

function deriveKey(secret: string, purpose: string): Buffer {
  return Buffer.from(hkdfSync('sha256', secret, 'postillion', purpose, 32));
}
