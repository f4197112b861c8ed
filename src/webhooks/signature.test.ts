import fc from 'fast-check';
import { Webhook } from 'standardwebhooks';
import { expect, test } from 'vitest';
import { createWebhookSecret, parseWebhookSecret, signWebhook } from './signature.ts';

/** From the tests of the standard's own libraries. */
const vector = {
  secret: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
  id: 'msg_p5jXN8AQM9LWM0D4loKWxJek',
  timestampSeconds: 1_614_265_330,
  body: Buffer.from('{"test": 2432232314}'),
  signature: 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=',
};

test('the message of the standard has the signature that stands there', () => {
  expect(signWebhook(vector, [vector.secret])).toEqual({
    'webhook-id': vector.id,
    'webhook-timestamp': '1614265330',
    'webhook-signature': vector.signature,
  });
});

/** The library accepts what is of its own present time only. */
const present = () => Math.floor(Date.now() / 1_000);

test('the library of the standard verifies whatever is signed, in every encoding', () => {
  const secrets = fc.uint8Array({ minLength: 24, maxLength: 64 });
  fc.assert(
    fc.property(secrets, fc.uuid(), fc.json(), (bytes, id, json) => {
      const secret = `whsec_${Buffer.from(bytes).toString('base64')}`;
      const body = Buffer.from(`{"text":"é 😀","json":${json}}`);
      const headers = signWebhook({ id, timestampSeconds: present(), body }, [secret]);
      expect(new Webhook(secret).verify(body, headers)).toEqual(JSON.parse(body.toString()));
    }),
  );
});

test('while a secret is replaced, receivers that have the old one and those that have the new one verify', () => {
  const [old, next, foreign] = [createWebhookSecret(), createWebhookSecret(), createWebhookSecret()];
  const body = Buffer.from('{"type":"email.sent"}');
  const headers = signWebhook({ id: 'a', timestampSeconds: present(), body }, [next, old]);
  expect(headers['webhook-signature'].split(' ')).toHaveLength(2);
  expect(new Webhook(old).verify(body, headers)).toEqual({ type: 'email.sent' });
  expect(new Webhook(next).verify(body, headers)).toEqual({ type: 'email.sent' });
  expect(() => new Webhook(foreign).verify(body, headers)).toThrow('No matching signature found');
});

test('a changed id, time or body is no longer signed', () => {
  const secret = createWebhookSecret();
  const body = Buffer.from('{"a":1}');
  const headers = signWebhook({ id: 'a', timestampSeconds: present(), body }, [secret]);
  const verify = (changed: object, text = body) =>
    new Webhook(secret).verify(text, { ...headers, ...changed });
  expect(verify({})).toEqual({ a: 1 });
  expect(() => verify({ 'webhook-id': 'b' })).toThrow('No matching signature found');
  expect(() => verify({ 'webhook-timestamp': String(present() - 1) })).toThrow('No matching signature found');
  expect(() => verify({}, Buffer.from('{"a":2}'))).toThrow('No matching signature found');
});

test('secrets are made new, of 32 octets, and can be read', () => {
  const made = Array.from({ length: 100 }, createWebhookSecret);
  expect(new Set(made).size).toBe(100);
  for (const secret of made) expect(parseWebhookSecret(secret)).toHaveLength(32);
});

const encode = (length: number) => Buffer.alloc(length, 0xfb).toString('base64');

test.each([
  [`whsec_${encode(24)}`, true],
  [`whsec_${encode(64)}`, true],
  [vector.secret, true],
  [`whsec_${encode(23)}`, false],
  [`whsec_${encode(65)}`, false],
  [encode(32), false],
  [`WHSEC_${encode(32)}`, false],
  ['whsec_', false],
  ['', false],
  // Read by Node, and by the libraries of some receivers in other ways.
  [`whsec_${encode(32).replace(/=/g, '')}`, false],
  [`whsec_${encode(32).replace(/\+/g, '-').replace(/\//g, '_')}`, false],
  [`whsec_${encode(32)} `, false],
  [`whsec_${encode(24)}\n${encode(24)}`, false],
  [`whsec_${encode(32).replace(/.=$/, '9=')}`, false],
])('%j is a secret: %s', (text, isSecret) => {
  expect(parseWebhookSecret(text) !== null).toBe(isSecret);
});

test('nothing is signed without a secret, or with what is none', () => {
  const message = { id: 'a', timestampSeconds: 1, body: Buffer.from('') };
  expect(() => signWebhook(message, [])).toThrow('without a secret');
  expect(() => signWebhook(message, [createWebhookSecret(), 'secret'])).toThrow('cannot be read');
});
