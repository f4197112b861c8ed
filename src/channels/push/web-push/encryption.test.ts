import { createECDH, randomBytes } from 'node:crypto';
import { decrypt } from 'http_ece';
import { expect, test } from 'vitest';
import { encryptForSubscription } from './encryption.ts';

/** RFC 8291 §5 and Appendix A. */
const vector = {
  plaintext: 'When I grow up, I want to be a watermelon',
  senderPrivate: 'yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw',
  receiverPublic: 'BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4',
  authSecret: 'BTBZMqHH6r4Tts7J_aSIgg',
  salt: 'DGv6ra1nlYgDCS1FRnbzlw',
  body: 'DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN',
};

const decode = (text: string) => Buffer.from(text, 'base64url');

test('the message of RFC 8291 is encrypted to the octets that stand there', () => {
  const body = encryptForSubscription(
    Buffer.from(vector.plaintext),
    { publicKey: decode(vector.receiverPublic), authSecret: decode(vector.authSecret) },
    { privateKey: decode(vector.senderPrivate), salt: decode(vector.salt) },
  );
  expect(body.toString('base64url')).toBe(vector.body);
});

function subscribe() {
  const pair = createECDH('prime256v1');
  pair.generateKeys();
  const authSecret = randomBytes(16);
  return { pair, authSecret, keys: { publicKey: pair.getPublicKey(), authSecret } };
}

test.each([0, 1, 15, 16, 300, 3_992, 3_993])('another implementation reads %i octets', (length) => {
  const { pair, authSecret, keys } = subscribe();
  const plaintext = randomBytes(length);
  const body = encryptForSubscription(plaintext, keys);
  expect(body).toHaveLength(length + 103);
  const read = decrypt(body, {
    version: 'aes128gcm',
    privateKey: pair,
    authSecret: authSecret.toString('base64url'),
  });
  expect(read.equals(plaintext)).toBe(true);
});

test('a plaintext of 3,993 octets makes a body of 4,096, and a longer one is none', () => {
  const { keys } = subscribe();
  expect(encryptForSubscription(Buffer.alloc(3_993), keys)).toHaveLength(4_096);
  expect(() => encryptForSubscription(Buffer.alloc(3_994), keys)).toThrow(RangeError);
});

test('two messages to one browser share neither salt nor key', () => {
  const { keys } = subscribe();
  const [first, second] = [1, 2].map(() => encryptForSubscription(Buffer.from('same'), keys));
  for (const [start, end] of [
    [0, 16],
    [21, 86],
    [86, 107],
  ]) {
    expect(first!.subarray(start, end).equals(second!.subarray(start, end))).toBe(false);
  }
});
