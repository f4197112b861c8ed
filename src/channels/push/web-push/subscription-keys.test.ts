import { createECDH, randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import { readSubscriptionKeys } from './subscription-keys.ts';

const pair = createECDH('prime256v1');
pair.generateKeys();
const publicKey = pair.getPublicKey();
const authSecret = randomBytes(16);
const p256dh = publicKey.toString('base64url');
const auth = authSecret.toString('base64url');

test('keys are read as browsers write them, and as plain base64', () => {
  expect(readSubscriptionKeys({ p256dh, auth })).toEqual({ publicKey, authSecret });
  expect(
    readSubscriptionKeys({ p256dh: publicKey.toString('base64'), auth: authSecret.toString('base64') }),
  ).toEqual({ publicKey, authSecret });
});

/** The point with one bit of its second half changed, which is on the curve no more. */
function offTheCurve(): Buffer {
  const changed = Buffer.from(publicKey);
  changed.writeUInt8(changed.readUInt8(64) ^ 0x01, 64);
  return changed;
}

test.each([
  ['none', Buffer.alloc(0)],
  ['one that is too short', publicKey.subarray(0, 64)],
  ['one that is too long', Buffer.concat([publicKey, Buffer.alloc(1)])],
  ['a compressed point', pair.getPublicKey(null, 'compressed')],
  ['a hybrid point', pair.getPublicKey(null, 'hybrid')],
  ['a point off the curve', offTheCurve()],
  ['the point at infinity, filled up', Buffer.alloc(65)],
  ['zeros of the right form', Buffer.concat([Buffer.from([0x04]), Buffer.alloc(64)])],
  ['another curve', createECDH('secp384r1').generateKeys()],
])('as a public key %s is refused', (_kind, key) => {
  expect(readSubscriptionKeys({ p256dh: key.toString('base64url'), auth })).toBe('bad_p256dh');
});

test.each([
  ['none', ''],
  ['15 octets', randomBytes(15).toString('base64url')],
  ['17 octets', randomBytes(17).toString('base64url')],
  ['what is no base64', `${auth.slice(0, -1)}!`],
  ['a megabyte', 'A'.repeat(1_000_000)],
])('as a secret %s is refused', (_kind, secret) => {
  expect(readSubscriptionKeys({ p256dh, auth: secret })).toBe('bad_auth');
});

test('a public key with something after it is refused', () => {
  expect(readSubscriptionKeys({ p256dh: `${p256dh} `, auth })).toBe('bad_p256dh');
  expect(readSubscriptionKeys({ p256dh: `${p256dh}\n`, auth })).toBe('bad_p256dh');
});
