import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createSecrets, isEqualDigest, sha256 } from './secrets.ts';

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
