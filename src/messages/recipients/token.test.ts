import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createSecrets } from '../../platform/secrets.ts';
import {
  readContactToken,
  readRecipientToken,
  type TokenPurpose,
  writeContactToken,
  writeRecipientTokens,
} from './token.ts';

const secrets = createSecrets('a secret of the tests, and of nothing else');
const others = createSecrets('another secret of the tests, of nothing else');
const purposes: TokenPurpose[] = ['tracking', 'unsubscribe'];
const recipient = {
  organizationId: '0198c0de-0000-7000-8000-000000000001',
  messageId: '0198c0de-0000-7000-8000-000000000002',
  ordinal: 7,
};
const tokens = writeRecipientTokens(secrets, recipient);

test('any recipient is read back from either token, and each recipient has its own', () => {
  const key = fc.record({
    organizationId: fc.uuid(),
    messageId: fc.uuid(),
    ordinal: fc.integer({ min: 0, max: 2_147_483_647 }),
  });
  fc.assert(
    fc.property(key, (wanted) => {
      const written = writeRecipientTokens(secrets, wanted);
      for (const purpose of purposes) {
        expect(written[purpose]).toMatch(/^[A-Za-z0-9_-]{64}$/);
        expect(readRecipientToken(secrets, purpose, written[purpose])).toEqual(wanted);
      }
      const next = { ...wanted, ordinal: (wanted.ordinal + 1) % 2_147_483_647 };
      expect(writeRecipientTokens(secrets, next).tracking).not.toBe(written.tracking);
    }),
  );
});

test('a token is the same every time, so that a copy tried again is the same to the octet', () => {
  expect(writeRecipientTokens(secrets, recipient)).toEqual(tokens);
  const inCapitals = { ...recipient, messageId: recipient.messageId.toUpperCase() };
  expect(writeRecipientTokens(secrets, inCapitals)).toEqual(tokens);
});

test('a token holds for its purpose and its installation alone', () => {
  expect(readRecipientToken(secrets, 'unsubscribe', tokens.tracking)).toBeNull();
  expect(readRecipientToken(secrets, 'tracking', tokens.unsubscribe)).toBeNull();
  for (const purpose of purposes) expect(readRecipientToken(others, purpose, tokens[purpose])).toBeNull();
});

test('a token with any character changed is none', () => {
  for (const purpose of purposes) {
    for (let index = 0; index < 64; index += 1) {
      const token = tokens[purpose];
      const changed = token.slice(0, index) + (token[index] === 'A' ? 'B' : 'A') + token.slice(index + 1);
      expect(readRecipientToken(secrets, purpose, changed)).toBeNull();
    }
  }
});

test.each([
  '',
  'x',
  tokens.tracking.slice(1),
  `${tokens.tracking}A`,
  `${tokens.tracking}=`,
  ` ${tokens.tracking}`,
  `${tokens.tracking}\n`,
  `${tokens.tracking}\0`,
  `${tokens.tracking.slice(0, -1)}+`,
  `${tokens.tracking.slice(0, -1)}é`,
  '\0'.repeat(64),
  '_'.repeat(64),
  'A'.repeat(30 * 1_048_576),
])('what is no token is refused', (text) => {
  for (const purpose of purposes) expect(readRecipientToken(secrets, purpose, text)).toBeNull();
});

test('no token is written for what is no recipient', () => {
  for (const changes of [{ messageId: 'x' }, { organizationId: '' }, { ordinal: -1 }, { ordinal: 1.5 }]) {
    expect(() => writeRecipientTokens(secrets, { ...recipient, ...changes })).toThrow();
  }
});

const contactId = '0198c0de-0000-7000-8000-000000000003';
const contactToken = writeContactToken(secrets, recipient, contactId);

test('whose contact a copy was for is read back for that recipient, by that installation, and from that text alone', () => {
  expect(contactToken).toMatch(/^[A-Za-z0-9_-]{36}$/);
  expect(readContactToken(secrets, recipient, contactToken)).toBe(contactId);
  expect(writeContactToken(secrets, recipient, contactId.toUpperCase())).toBe(contactToken);
  expect(readContactToken(others, recipient, contactToken)).toBeNull();
  expect(readContactToken(secrets, { ...recipient, ordinal: 8 }, contactToken)).toBeNull();
  for (let index = 0; index < 36; index += 1) {
    const changed =
      contactToken.slice(0, index) +
      (contactToken[index] === 'A' ? 'B' : 'A') +
      contactToken.slice(index + 1);
    expect(readContactToken(secrets, recipient, changed)).toBeNull();
  }
  for (const text of ['', `${contactToken}A`, contactToken.slice(1), '\0'.repeat(36), tokens.unsubscribe])
    expect(readContactToken(secrets, recipient, text)).toBeNull();
  expect(() => writeContactToken(secrets, recipient, 'x')).toThrow();
});
