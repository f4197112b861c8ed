import fc from 'fast-check';
import { expect, test } from 'vitest';
import { randomBytes } from 'node:crypto';
import {
  createKeyRing,
  createSecrets,
  type DataKey,
  dataKeyBytes,
  deriveDataKey,
  isEqualDigest,
  sha256,
} from './secrets.ts';

const secret = 'a secret of the tests, and of nothing else';
const secrets = createSecrets(secret);

test('what was sealed is opened by the same secret in the same context, in another process too', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 2_000 }), fc.string(), (plaintext, context) => {
      const sealed = secrets.encrypt(plaintext, context);
      expect(Buffer.from(createSecrets(secret).decrypt(sealed, context))).toEqual(Buffer.from(plaintext));
    }),
  );
});

test('a single changed bit, wherever it is, is found out', () => {
  const sealed = secrets.encrypt(Buffer.from('thirteen byte'), 'context');
  for (let bit = 0; bit < sealed.length * 8; bit += 1) {
    const changed = Buffer.from(sealed);
    changed[bit >> 3] = changed[bit >> 3]! ^ (1 << (bit & 7));
    expect(() => secrets.decrypt(changed, 'context')).toThrow();
  }
});

test('another context, another secret, or less than all of the bytes opens nothing', () => {
  const sealed = secrets.encrypt(Buffer.from('private'), 'attachment 1');
  expect(() => secrets.decrypt(sealed, 'attachment 2')).toThrow();
  expect(() => createSecrets(`${secret}!`).decrypt(sealed, 'attachment 1')).toThrow();
  for (let length = 0; length < sealed.length; length += 1) {
    expect(() => secrets.decrypt(sealed.subarray(0, length), 'attachment 1')).toThrow();
  }
});

test('the same text is sealed differently each time, and does not show', () => {
  const [first, second] = [1, 2].map(() => secrets.encrypt(Buffer.from('the private key'), ''));
  expect(first!.equals(second!)).toBe(false);
  expect(first!.includes('private')).toBe(false);
});

test('a keyed hash depends on text, purpose and secret, and on where the one ends and the other begins', () => {
  const hash = secrets.keyedHash('ann@example.com', 'suppression');
  expect(hash).toEqual(createSecrets(secret).keyedHash('ann@example.com', 'suppression'));
  const others = [
    secrets.keyedHash('ann@example.org', 'suppression'),
    secrets.keyedHash('ann@example.com', 'token'),
    secrets.keyedHash('nann@example.com', 'suppressio'),
    createSecrets(`${secret}!`).keyedHash('ann@example.com', 'suppression'),
    sha256('ann@example.com'),
  ];
  for (const other of others) expect(isEqualDigest(hash, other)).toBe(false);
});

test('a secret that could be guessed is refused', () => {
  expect(() => createSecrets('x'.repeat(31))).toThrow('at least 32 characters');
});

test('digests are equal byte for byte or not at all, and of different length never', () => {
  const digest = sha256('text');
  expect(digest.toString('hex')).toBe('982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1');
  expect(isEqualDigest(digest, Buffer.from(digest))).toBe(true);
  expect(isEqualDigest(digest, sha256('Text'))).toBe(false);
  expect(isEqualDigest(digest, digest.subarray(0, 31))).toBe(false);
});

const first: DataKey = { id: 1, bytes: deriveDataKey(secret), usableFromMs: 0 };
const second: DataKey = { id: 2, bytes: randomBytes(dataKeyBytes), usableFromMs: 1_000 };
const third: DataKey = { id: 3, bytes: randomBytes(dataKeyBytes), usableFromMs: 2_000 };
const isSignature = (expected: Buffer) => (signature: Buffer) => isEqualDigest(signature, expected);

test('what is sealed and signed under a text is read by the key that is derived from it, and the other way round', () => {
  const ring = createKeyRing([first], () => 0);
  expect(ring.decrypt(secrets.encrypt(Buffer.from('old'), 'c'), 'c').toString()).toBe('old');
  expect(secrets.decrypt(ring.encrypt(Buffer.from('new'), 'c'), 'c').toString()).toBe('new');
  expect(ring.isSigned('text', 'p', isSignature(secrets.keyedHash('text', 'p')))).toBe(true);
});

test('a new key is read at once, and used only from its time on', () => {
  let nowMs = 999;
  const writer = createKeyRing([second, first], () => nowMs);
  const reader = createKeyRing([first], () => 0);
  const before = writer.encrypt(Buffer.from('text'), 'c');
  expect(reader.decrypt(before, 'c').toString()).toBe('text');
  expect(reader.isSigned('text', 'p', isSignature(writer.sign('text', 'p')))).toBe(true);

  nowMs = 1_000;
  const after = writer.encrypt(Buffer.from('text'), 'c');
  expect(() => reader.decrypt(after, 'c')).toThrow('the key 2, which this process does not know');
  expect(reader.isSigned('text', 'p', isSignature(writer.sign('text', 'p')))).toBe(false);
  reader.replaceKeys([first, second]);
  expect(reader.decrypt(after, 'c').toString()).toBe('text');
  expect(reader.isSigned('text', 'p', isSignature(writer.sign('text', 'p')))).toBe(true);
});

test('whatever any key has sealed or signed is read by all of them together, in the same context only', () => {
  for (const keys of [[first], [first, second], [first, second, third]]) {
    const ring = createKeyRing([third, first, second], () => 5_000);
    const old = createKeyRing(keys, () => 5_000);
    const sealed = old.encrypt(Buffer.from('text'), 'c');
    expect(ring.decrypt(sealed, 'c').toString()).toBe('text');
    expect(() => ring.decrypt(sealed, 'd')).toThrow();
    const signature = old.sign('text', 'p');
    expect(ring.isSigned('text', 'p', isSignature(signature))).toBe(true);
    expect(ring.isSigned('text', 'q', isSignature(signature))).toBe(false);
    expect(ring.isSigned('other', 'p', isSignature(signature))).toBe(false);
  }
});

test('a hash that rows are found by is the same under whatever keys came later', () => {
  const hash = secrets.keyedHash('+14155550100', 'suppression');
  expect(createKeyRing([third, second, first], () => 9_000).keyedHash('+14155550100', 'suppression')).toEqual(
    hash,
  );
});

test('a changed bit is found out in what a later key has sealed, its number included', () => {
  const ring = createKeyRing([first, second, third], () => 5_000);
  const sealed = ring.encrypt(Buffer.from('text'), 'c');
  for (let bit = 0; bit < sealed.length * 8; bit += 1) {
    const changed = Buffer.from(sealed);
    changed[bit >> 3] = changed[bit >> 3]! ^ (1 << (bit & 7));
    expect(() => ring.decrypt(changed, 'c')).toThrow();
  }
});

test('keys without the first one are none', () => {
  expect(() => createKeyRing([second], () => 0)).toThrow('the first data key is missing');
  expect(() => createKeyRing([{ ...first, bytes: randomBytes(63) }], () => 0)).toThrow('wrong length');
});
