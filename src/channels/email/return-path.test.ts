import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createSecrets } from '../../platform/secrets.ts';
import { parseAddress } from './address.ts';
import {
  readReturnPathToken,
  readUnsubscribeToken,
  writeReturnPath,
  writeUnsubscribeAddress,
} from './return-path.ts';

const secrets = createSecrets('a secret of at least thirty-two characters');
const others = createSecrets('another one of at least thirty-two characters');
const organizationId = '0198c0de-0000-7000-8000-000000000001';
const reference = { messageId: '0198c0de-1234-7abc-8def-0123456789ab', ordinal: 41 };
const host = 'send.example.test';
const localPart = writeReturnPath(secrets, organizationId, reference, host).split('@')[0]!;

const references = fc.record({
  messageId: fc.uuid(),
  ordinal: fc.integer({ min: 0, max: 2_147_483_647 }),
});

test('whatever reference is written is read again, in either case', () => {
  fc.assert(
    fc.property(references, fc.uuid(), (written, organization) => {
      const address = writeReturnPath(secrets, organization, written, host);
      for (const form of [address, address.toUpperCase()]) {
        const token = readReturnPathToken(form.split('@')[0]!);
        expect(token?.reference).toEqual(written);
        expect(token?.isSignedFor(secrets, organization)).toBe(true);
      }
    }),
  );
});

test('a return path is an address that every server takes: at most 64 octets of plain letters and digits', () => {
  fc.assert(
    fc.property(references, (written) => {
      const address = writeReturnPath(secrets, organizationId, written, host);
      expect(parseAddress(address)?.envelope).toBe(address);
      expect(address).toMatch(/^bounce-[a-z2-7]{52}@send\.example\.test$/);
    }),
  );
  expect(localPart.length).toBeLessThanOrEqual(64);
});

test('no other organization, installation, message or recipient has the same signature', () => {
  const token = readReturnPathToken(localPart);
  expect(token?.isSignedFor(secrets, '0198c0de-0000-7000-8000-000000000002')).toBe(false);
  expect(token?.isSignedFor(others, organizationId)).toBe(false);
  const neighbours = [
    { ...reference, ordinal: reference.ordinal + 1 },
    { ...reference, messageId: '0198c0de-1234-7abc-8def-0123456789ac' },
  ];
  for (const neighbour of neighbours) {
    const [other] = writeReturnPath(secrets, organizationId, neighbour, host).split('@');
    expect(other!.slice(-19)).not.toBe(localPart.slice(-19));
  }
});

test('no token with one character changed is signed', () => {
  for (let at = 'bounce-'.length; at < localPart.length; at += 1) {
    const changed = localPart.slice(0, at) + (localPart[at] === 'a' ? 'b' : 'a') + localPart.slice(at + 1);
    expect(readReturnPathToken(changed)?.isSignedFor(secrets, organizationId) ?? false).toBe(false);
  }
});

test('an address that unsubscribes is one of its own: a return path does not unsubscribe, whatever it is called', () => {
  fc.assert(
    fc.property(references, (written) => {
      const address = writeUnsubscribeAddress(secrets, organizationId, written, host);
      expect(parseAddress(address)?.envelope).toBe(address);
      expect(address).toMatch(/^unsub-[a-z2-7]{52}@send\.example\.test$/);
      const [text = ''] = address.toUpperCase().split('@');
      const token = readUnsubscribeToken(text);
      expect(token?.reference).toEqual(written);
      expect(token?.isSignedFor(secrets, organizationId)).toBe(true);
      expect(token?.isSignedFor(others, organizationId)).toBe(false);
      expect(readReturnPathToken(text)).toBeNull();
    }),
  );
  expect(readUnsubscribeToken(localPart)).toBeNull();
  const renamed = readUnsubscribeToken(localPart.replace('bounce-', 'unsub-'));
  expect(renamed?.reference).toEqual(reference);
  expect(renamed?.isSignedFor(secrets, organizationId)).toBe(false);
});

test('a token has one spelling: bits after its last octet are refused', () => {
  const spellings = [...'abcdefghijklmnopqrstuvwxyz234567']
    .map((last) => readReturnPathToken(localPart.slice(0, -1) + last))
    .filter((token) => token !== null);
  expect(spellings).toHaveLength(2);
  expect(spellings.filter((token) => token.isSignedFor(secrets, organizationId))).toHaveLength(1);
});

test.each([
  '',
  'bounce-',
  'someone',
  localPart.slice(1),
  `${localPart}a`,
  localPart.replace('bounce', 'b0unce'),
])('%j is no return path', (text) => {
  expect(readReturnPathToken(text)).toBeNull();
});

test('no text that is none of ours is signed, and none makes the reader fail', () => {
  fc.assert(
    fc.property(fc.oneof(fc.string(), fc.string({ minLength: 59, maxLength: 59 })), (text) => {
      expect(readReturnPathToken(text)?.isSignedFor(secrets, organizationId) ?? false).toBe(false);
    }),
  );
});

test('what is no reference cannot be written', () => {
  expect(() => writeReturnPath(secrets, organizationId, { messageId: 'x', ordinal: 0 }, host)).toThrow(
    'UUID',
  );
  for (const ordinal of [-1, 0.5, 2_147_483_648])
    expect(() => writeReturnPath(secrets, organizationId, { ...reference, ordinal }, host)).toThrow(
      'ordinal',
    );
  const long = `${'a'.repeat(60)}.`.repeat(4);
  expect(() => writeReturnPath(secrets, organizationId, reference, `${long}test`)).toThrow('too long');
});
