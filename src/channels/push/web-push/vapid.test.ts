import { execFile } from 'node:child_process';
import { createECDH, createPublicKey, verify } from 'node:crypto';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { createManualClock } from '../../../../test/support/manual-clock.ts';
import { createVapidTokens, generateVapidKeys } from './vapid.ts';
import { isVapidSubject } from './vapid-subject.ts';

const hourMs = 3_600_000;
const subject = 'mailto:push@example.com';

/** As a push service reads it: the claims, after the signature under the key that stands beside them. */
function readAuthorization(authorization: string) {
  const [, header = '', claims = '', signature = '', key = ''] =
    /^vapid t=([^.]+)\.([^.]+)\.([^,]+), k=(.+)$/.exec(authorization) ?? [];
  const decode = (part: string): unknown => JSON.parse(Buffer.from(part, 'base64url').toString());
  const point = Buffer.from(key, 'base64url');
  const publicKey = createPublicKey({
    key: {
      kty: 'EC',
      crv: 'P-256',
      x: point.subarray(1, 33).toString('base64url'),
      y: point.subarray(33).toString('base64url'),
    },
    format: 'jwk',
  });
  return {
    isGenuine: verify(
      'sha256',
      Buffer.from(`${header}.${claims}`),
      { key: publicKey, dsaEncoding: 'ieee-p1363' },
      Buffer.from(signature, 'base64url'),
    ),
    header: decode(header),
    claims: decode(claims) as { aud: string; exp: number; sub: string },
    key,
  };
}

test('a pair is a point of 65 octets and the private key that belongs to it', () => {
  // One in 256 private keys begins with a zero.
  for (let round = 0; round < 2_000; round += 1) {
    const { publicKey, privateKey } = generateVapidKeys();
    const point = Buffer.from(publicKey, 'base64url');
    expect([point.length, point[0], Buffer.from(privateKey, 'base64url').length]).toEqual([65, 4, 32]);
    const pair = createECDH('prime256v1');
    pair.setPrivateKey(Buffer.from(privateKey, 'base64url'));
    expect(pair.getPublicKey('base64url')).toBe(publicKey);
  }
  expect(generateVapidKeys()).not.toEqual(generateVapidKeys());
});

test('pairs are made however often garbage is collected meanwhile', async () => {
  const makingPairs = `
    import { setFlagsFromString } from 'node:v8';
    import { generateVapidKeys } from './src/channels/push/web-push/vapid.ts';
    setFlagsFromString('--gc-global');
    for (let round = 0; round < 40_000; round += 1) generateVapidKeys();
    console.log('made');`;
  // A process that waits for itself is ended from outside.
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['--import', 'tsx', '--max-semi-space-size=1', '--input-type=module', '-e', makingPairs],
    { timeout: 60_000, killSignal: 'SIGKILL' },
  );
  expect(stdout).toBe('made\n');
});

test('a push service can verify who sends, to which origin, and for twelve hours', () => {
  const clock = createManualClock();
  const keys = generateVapidKeys();
  const authorization = createVapidTokens(clock).authorizationFor(
    { ...keys, subject },
    'https://push.example.com',
  );
  expect(readAuthorization(authorization)).toEqual({
    isGenuine: true,
    header: { alg: 'ES256', typ: 'JWT' },
    claims: { aud: 'https://push.example.com', exp: clock.nowMs() / 1_000 + 12 * 3_600, sub: subject },
    key: keys.publicKey,
  });
});

test('where nobody has said who sends, the token does not say it either', () => {
  const clock = createManualClock();
  const keys = generateVapidKeys();
  const tokens = createVapidTokens(clock);
  const nameless = tokens.authorizationFor({ ...keys, subject: null }, 'https://push.example.com');
  expect(readAuthorization(nameless).claims).toEqual({
    aud: 'https://push.example.com',
    exp: clock.nowMs() / 1_000 + 12 * 3_600,
  });
  expect(tokens.authorizationFor({ ...keys, subject }, 'https://push.example.com')).not.toBe(nameless);
});

test('a token serves all requests to an origin for six hours, and then there is a new one', () => {
  const clock = createManualClock();
  const tokens = createVapidTokens(clock);
  const sender = { ...generateVapidKeys(), subject };
  const ask = () => tokens.authorizationFor(sender, 'https://push.example.com');
  const first = ask();
  clock.advance(6 * hourMs - 1);
  expect(ask()).toBe(first);
  clock.advance(1);
  const second = ask();
  expect(readAuthorization(second).claims.exp - readAuthorization(first).claims.exp).toBe(6 * 3_600);
  expect(ask()).toBe(second);
});

test('a clock that is set back makes a new token, which is not of the future', () => {
  const clock = createManualClock();
  const tokens = createVapidTokens(clock);
  const sender = { ...generateVapidKeys(), subject };
  tokens.authorizationFor(sender, 'https://push.example.com');
  clock.setWallTime(clock.nowMs() - 48 * hourMs);
  const { claims } = readAuthorization(tokens.authorizationFor(sender, 'https://push.example.com'));
  expect(claims.exp).toBe(clock.nowMs() / 1_000 + 12 * 3_600);
});

test('organizations, subjects and origins have tokens of their own', () => {
  const tokens = createVapidTokens(createManualClock());
  const [ours, theirs] = [generateVapidKeys(), generateVapidKeys()];
  const all = [
    tokens.authorizationFor({ ...ours, subject }, 'https://a.example.com'),
    tokens.authorizationFor({ ...theirs, subject }, 'https://a.example.com'),
    tokens.authorizationFor({ ...ours, subject: 'https://example.com' }, 'https://a.example.com'),
    tokens.authorizationFor({ ...ours, subject }, 'https://b.example.com'),
  ];
  expect(new Set(all).size).toBe(4);
  expect(all.map((each) => readAuthorization(each).key)).toEqual([
    ours.publicKey,
    theirs.publicKey,
    ours.publicKey,
    ours.publicKey,
  ]);
});

test.each([
  [true, 'mailto:push@example.com'],
  [true, 'https://example.com'],
  [true, 'https://push.example.co.uk/contact'],
  [false, ''],
  [false, 'push@example.com'],
  [false, 'mailto: <push@example.com>'],
  [false, 'mailto:<push@example.com>'],
  [false, 'mailto:mailto:push@example.com'],
  [false, 'mailto:push@localhost'],
  [false, 'mailto:push@printer.local'],
  [false, 'mailto:push@127.0.0.1'],
  [false, 'http://example.com'],
  [false, 'https://localhost:8025'],
  [false, 'https://printer.local'],
  [false, 'https://127.0.0.1'],
  [false, 'https://[::1]'],
  [false, 'https://'],
])('whether Apple takes it is %s for %j', (isTaken, text) => {
  expect(isVapidSubject(text)).toBe(isTaken);
});
