import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createHmac,
  createSecretKey,
  hkdfSync,
  type KeyObject,
  randomBytes,
  timingSafeEqual,
} from 'node:crypto';
import { runAtOnce, runInSteps, stepBytesMax, type Steps } from './steps.ts';

/**
 * What is sealed, signed and hashed under the data keys of the installation. They are numbered from 1; the newest that
 * is in use seals and signs, and every key that ever did stays, so that what is stored or was sent can be read.
 * Where the keys come from, and how a new one is made, is in `secret-keys.ts`.
 */
export type Secrets = {
  /** AES-256-GCM under a fresh nonce; `context` is authenticated with it and must be the same to decrypt. */
  encrypt: (plaintext: Uint8Array, context: string) => Buffer;
  /** Throws an UnknownKeyError, or any other if the bytes or the context are not those of `encrypt`. */
  decrypt: (sealed: Uint8Array, context: string) => Buffer;
  /** The same for megabytes: yields to the event loop meanwhile. */
  encryptInSteps: (plaintext: Uint8Array, context: string) => Promise<Buffer>;
  /** Looks for keys that are new before it says that one is unknown. */
  decryptInSteps: (sealed: Uint8Array, context: string) => Promise<Buffer>;
  /**
   * HMAC-SHA-256 under the first key, whatever keys came later: equal inputs give equal hashes for ever, so that rows
   * can be found by them (a blind index), but nothing can be read back or guessed without the key. Two keys would need
   * two looks at every place, and one that was forgotten would lift an opt-out.
   */
  keyedHash: (text: string, purpose: string) => Buffer;
  /** HMAC-SHA-256 under the newest key: for what comes back and is only checked. */
  sign: (text: string, purpose: string) => Buffer;
  /**
   * Whether any key has signed the text: `isMatch` is asked about the signature of each key, the newest first, and
   * compares in constant time the part of it that came back.
   */
  isSigned: (text: string, purpose: string, isMatch: (signature: Buffer) => boolean) => boolean;
};

/**
 * The sealed bytes name a key that this process does not know. Another process may know it, and this one may learn it
 * later: the bytes may well be genuine.
 */
export class UnknownKeyError extends Error {
  override readonly name = 'UnknownKeyError';
  readonly keyId: number;
  constructor(keyId: number, cause: unknown) {
    super(`it is sealed under the key ${keyId}, which this process does not know`, { cause });
    this.keyId = keyId;
  }
}

/** 256 bits in hexadecimal or base64 are the usual; anything shorter than this can be guessed. */
export const secretLengthMin = 32;

/** A data key: `bytes` are two keys of 32, one to encrypt and one to hash. */
export type DataKey = {
  /** From 1 to `dataKeyIdMax`. */
  id: number;
  bytes: Buffer;
  /** When it begins to seal and to sign. Before that every process can learn to read it. */
  usableFromMs: number;
};

/** A byte names it in what it seals. */
export const dataKeyIdMax = 255;
export const dataKeyBytes = 64;

const nonceBytes = 12;
const tagBytes = 16;

/**
 * Before what a key from the second on has sealed, and followed by its id. What the first has sealed begins with its
 * nonce, as everything did when there was only one.
 */
const sealMark = Buffer.from('PSK');
const headerBytes = sealMark.length + 1;

type OpenedKey = { id: number; usableFromMs: number; encryptionKey: KeyObject; hashKey: KeyObject };

/** Secrets whose keys can be replaced while they are in use. */
export type KeyRing = Secrets & {
  /** Throws if the first key is not among them. */
  replaceKeys: (keys: readonly DataKey[]) => void;
};

/**
 * `readKeys` looks for the keys as they are now, or returns null where none can be read; it is asked before a key is
 * taken for unknown.
 * @throws if the first key is not among them
 */
export function createKeyRing(
  keys: readonly DataKey[],
  nowMs: () => number,
  readKeys: () => Promise<readonly DataKey[] | null> = () => Promise.resolve(null),
): KeyRing {
  let opened = openKeys(keys);
  let learning: Promise<void> | null = null;

  const readAnew = async () => {
    const found = await readKeys();
    if (found !== null) opened = openKeys(found);
  };
  /** Callers that miss a key at the same time share one look-up. */
  const learnKeys = () => {
    learning ??= readAnew().finally(() => {
      learning = null;
    });
    return learning;
  };

  /** The newest in use; the first is from the beginning. */
  const currentKey = (): OpenedKey => {
    const atMs = opened.length === 1 ? Number.NEGATIVE_INFINITY : nowMs();
    return opened.find(({ id, usableFromMs }) => id === 1 || usableFromMs <= atMs) ?? firstOf(opened);
  };
  const hash = ({ hashKey }: OpenedKey, text: string, purpose: string) =>
    createHmac('sha256', hashKey).update(`${purpose}\0${text}`).digest();

  const encrypt = (plaintext: Uint8Array, context: string): Steps<Buffer> => {
    const { id, encryptionKey } = currentKey();
    const header = id === 1 ? Buffer.alloc(0) : Buffer.concat([sealMark, Buffer.of(id)]);
    return seal(encryptionKey, plaintext, context, header);
  };
  function* decrypt(sealed: Uint8Array, context: string): Steps<Buffer> {
    const keys = opened;
    const id = namedKeyOf(sealed);
    const named = id === null ? undefined : keys.find((key) => key.id === id);
    if (named !== undefined) {
      try {
        return yield* unseal(named.encryptionKey, sealed.subarray(headerBytes), context);
      } catch {
        // A nonce of the first key may look like that, once in four thousand million times.
      }
    }
    try {
      return yield* unseal(firstOf(keys).encryptionKey, sealed, context);
    } catch (cause) {
      if (id === null || named !== undefined) throw cause;
      throw new UnknownKeyError(id, cause);
    }
  }

  return {
    encrypt: (plaintext, context) => runAtOnce(encrypt(plaintext, context)),
    decrypt: (sealed, context) => runAtOnce(decrypt(sealed, context)),
    encryptInSteps: (plaintext, context) => runInSteps(encrypt(plaintext, context)),
    decryptInSteps: async (sealed, context) => {
      try {
        return await runInSteps(decrypt(sealed, context));
      } catch (cause) {
        if (!(cause instanceof UnknownKeyError)) throw cause;
      }
      await learnKeys();
      return runInSteps(decrypt(sealed, context));
    },
    keyedHash: (text, purpose) => hash(firstOf(opened), text, purpose),
    sign: (text, purpose) => hash(currentKey(), text, purpose),
    isSigned: (text, purpose, isMatch) => opened.some((key) => isMatch(hash(key, text, purpose))),
    replaceKeys: (replacement) => {
      opened = openKeys(replacement);
    },
  };
}

/** Secrets of one key that is derived from a text: for what needs secrets and has no installation. */
export function createSecrets(secret: string): Secrets {
  return createKeyRing([{ id: 1, bytes: deriveDataKey(secret), usableFromMs: 0 }], () => 0);
}

/** A key that is derived from a text (HKDF, RFC 5869). Throws for one that can be guessed. */
export function deriveDataKey(secret: string): Buffer {
  return Buffer.concat([
    deriveKey(secret, 'encryption at rest', dataKeyBytes / 2),
    deriveKey(secret, 'keyed hashes', dataKeyBytes / 2),
  ]);
}

/** What opens the data keys that are sealed under a secret. */
export type SecretSeal = { seal: (key: DataKey) => Buffer; open: (keyId: number, sealed: Buffer) => Buffer };

/** Throws for a secret that can be guessed; `open` throws for what another secret has sealed, or for another key. */
export function createSecretSeal(secret: string): SecretSeal {
  const sealingKey = createSecretKey(deriveKey(secret, 'sealing of data keys', 32));
  return {
    seal: ({ id, bytes }) => runAtOnce(seal(sealingKey, bytes, `data key ${id}`, Buffer.alloc(0))),
    open: (keyId, sealed) => runAtOnce(unseal(sealingKey, sealed, `data key ${keyId}`)),
  };
}

export function sha256(data: string | Uint8Array): Buffer {
  return createHash('sha256').update(data).digest();
}

/** In constant time; digests of different length are unequal. */
export function isEqualDigest(first: Uint8Array, second: Uint8Array): boolean {
  return first.length === second.length && timingSafeEqual(first, second);
}

/** The newest first. As key objects: 4.6 µs a hash instead of 6.2. */
function openKeys(keys: readonly DataKey[]): [OpenedKey, ...OpenedKey[]] {
  const opened = keys
    .map(({ id, bytes, usableFromMs }) => {
      if (bytes.length !== dataKeyBytes) throw new Error(`the data key ${id} has a wrong length`);
      return {
        id,
        usableFromMs,
        encryptionKey: createSecretKey(bytes.subarray(0, dataKeyBytes / 2)),
        hashKey: createSecretKey(bytes.subarray(dataKeyBytes / 2)),
      };
    })
    .sort((one, other) => other.id - one.id);
  if (opened.at(-1)?.id !== 1) throw new Error('the first data key is missing');
  return opened as [OpenedKey, ...OpenedKey[]]; // It has the first key at least.
}

function firstOf(opened: readonly [OpenedKey, ...OpenedKey[]]): OpenedKey {
  return opened.at(-1) ?? opened[0];
}

function namedKeyOf(sealed: Uint8Array): number | null {
  if (sealed.length < headerBytes || !sealMark.equals(sealed.subarray(0, sealMark.length))) return null;
  return sealed[sealMark.length] ?? null;
}

/** `header` goes before it as it is. GCM makes as many bytes as it is given (NIST SP 800-38D §5.2.1). */
function* seal(key: KeyObject, plaintext: Uint8Array, context: string, header: Buffer): Steps<Buffer> {
  const nonce = randomBytes(nonceBytes);
  const cipher = createCipheriv('aes-256-gcm', key, nonce);
  cipher.setAAD(Buffer.from(context));
  const start = header.length + nonceBytes;
  const sealed = Buffer.alloc(start + plaintext.length + tagBytes);
  header.copy(sealed);
  nonce.copy(sealed, header.length);
  for (let at = 0; at < plaintext.length; at += stepBytesMax) {
    if (at > 0) yield;
    cipher.update(plaintext.subarray(at, at + stepBytesMax)).copy(sealed, start + at);
  }
  cipher.final();
  cipher.getAuthTag().copy(sealed, start + plaintext.length);
  return sealed;
}

function* unseal(key: KeyObject, sealed: Uint8Array, context: string): Steps<Buffer> {
  const nonce = sealed.subarray(0, nonceBytes);
  const tag = sealed.subarray(sealed.length - tagBytes);
  const decipher = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: tagBytes });
  decipher.setAAD(Buffer.from(context));
  decipher.setAuthTag(tag);
  const encrypted = sealed.subarray(nonceBytes, sealed.length - tagBytes);
  const plaintext = Buffer.alloc(encrypted.length);
  for (let at = 0; at < encrypted.length; at += stepBytesMax) {
    if (at > 0) yield;
    decipher.update(encrypted.subarray(at, at + stepBytesMax)).copy(plaintext, at);
  }
  decipher.final();
  return plaintext;
}

function deriveKey(secret: string, purpose: string, length: number): Buffer {
  if (secret.length < secretLengthMin) {
    throw new Error(`POSTILLION_SECRET must have at least ${secretLengthMin} characters`);
  }
  return Buffer.from(hkdfSync('sha256', secret, 'postillion', purpose, length));
}
