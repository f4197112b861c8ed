import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { PageRequest } from '../platform/http/route.ts';
import { createKeyRing, createSecrets, type DataKey, dataKeyBytes } from '../platform/secrets.ts';
import { isDirect, isLinkOpened, isWelcome, sandboxToken, tokenCookie } from './visitor.ts';
import { localRequest as local } from '../../test/support/page-request.ts';

const token = sandboxToken(createSecrets('a secret of the tests, and of nothing else'));
const loopback = { mode: 'loopback', token: () => token } as const;
const withHeader = (name: string, value: string) => ({
  header: (asked: string) => (asked === name ? value : undefined),
});

test.each(['127.0.0.1', '127.8.9.10', '::1', '::ffff:127.0.0.1'])(
  'whoever asks from %s is on this machine',
  (remoteAddress) => {
    expect(isDirect({ ...local, remoteAddress })).toBe(true);
  },
);

test.each([
  '10.0.0.1',
  '192.168.1.7',
  '8.8.8.8',
  '::ffff:10.0.0.1',
  '2001:db8::1',
  'fe80::1',
  '128.0.0.1',
  '',
])('whoever asks from "%s" is not', (remoteAddress) => {
  expect(isDirect({ ...local, remoteAddress })).toBe(false);
});

test.each(['localhost:8025', 'LOCALHOST:8025', '127.0.0.1:8025', '127.1.2.3:8025', '[::1]:8025'])(
  'the host %s names this machine',
  (host) => {
    expect(isDirect({ ...local, host })).toBe(true);
  },
);

test.each(['localhost', '127.0.0.1', '[::1]'])('the host %s means port 80', (host) => {
  expect(isDirect({ ...local, host })).toBe(false);
  expect(isDirect({ ...local, host, localPort: 80 })).toBe(true);
});

test.each([
  '',
  'evil.example',
  'localhost.evil.example',
  '127.0.0.1.evil.example',
  'evil.example@localhost',
  'localhost@evil.example',
  'localhost/evil.example',
  'localhost:80:80',
  'localhost:08025x',
  'example.com',
  'mail.example.com:443',
  '0.0.0.0',
  '[::2]',
  '127.1',
])('the host "%s" does not, as in a rebound name', (host) => {
  for (const localPort of [80, 443, 8025]) {
    expect(isDirect({ ...local, host, localPort })).toBe(false);
    expect(isDirect({ ...local, host: `${host}:8025` })).toBe(false);
  }
});

test('what came through a proxy on this machine did not come from this machine', () => {
  expect(isDirect({ ...local, isForwarded: true })).toBe(false);
  expect(isDirect({ ...local, httpVersion: '1.0' })).toBe(false);
  expect(isDirect({ ...local, host: 'localhost:9000' })).toBe(false);
});

test.each([
  ['upgrade', 'websocket'],
  ['upgrade', ''],
  ['connection', 'upgrade'],
  ['connection', 'keep-alive, Upgrade'],
  ['connection', 'close, X-Forwarded-For'],
])('what has the header %s: "%s" is not direct', (name, value) => {
  expect(isDirect({ ...local, ...withHeader(name, value) })).toBe(false);
});

test.each(['keep-alive', 'Keep-Alive', 'close', 'keep-alive, close', ''])(
  'programs say "Connection: %s" themselves',
  (value) => {
    expect(isDirect({ ...local, ...withHeader('connection', value) })).toBe(true);
  },
);

test('no registrable name passes for this machine', () => {
  fc.assert(
    fc.property(fc.domain(), (domain) => {
      expect(isDirect({ ...local, host: `${domain}:8025` })).toBe(false);
    }),
  );
});

const distant: PageRequest = {
  ...local,
  remoteAddress: '8.8.8.8',
  host: 'mail.example.com',
  isForwarded: true,
  httpVersion: '1.0',
};

test('whoever has the token is welcome from anywhere, whichever way it comes', async () => {
  for (const mode of ['loopback', 'token'] as const) {
    const access = { mode, token: () => token };
    expect(await isWelcome(distant, access)).toBe(false);
    for (const given of [
      { query: { token } },
      withHeader('authorization', `Bearer ${token}`),
      withHeader('cookie', `a=b; postillion_sandbox=${token}; c=d`),
    ]) {
      expect(await isWelcome({ ...distant, ...given }, access)).toBe(true);
    }
  }
});

test('no other text is the token', async () => {
  const access = { mode: 'token', token: () => token } as const;
  const wrong = fc.oneof(
    fc.string(),
    fc.nat(token.length - 1).map((length) => token.slice(0, length)),
    fc.constantFrom(`${token}0`, token.toUpperCase(), ` ${token}`, `0${token}`),
  );
  await fc.assert(
    fc.asyncProperty(wrong, async (given) => {
      fc.pre(given !== token);
      expect(await isWelcome({ ...distant, query: { token: given } }, access)).toBe(false);
      expect(
        await isWelcome({ ...distant, ...withHeader('cookie', `postillion_sandbox=${given}0`) }, access),
      ).toBe(false);
      expect(isLinkOpened({ ...distant, query: { token: given } }, access)).toBe(false);
    }),
  );
});

test.skipIf(process.platform !== 'linux')(
  'what asks from a socket that is not of our own user is not welcome, although it asks from here',
  async () => {
    // Of no user at all: socket-owner.test.ts tries those of others.
    const request = { ...local, remotePort: 1 };
    expect(isDirect(request)).toBe(true);
    expect(await isWelcome(request, loopback)).toBe(false);
  },
);

test('with `token`, being on this machine is not enough', async () => {
  expect(await isWelcome(local, { mode: 'token', token: () => token })).toBe(false);
});

test('a public sandbox is for everyone', async () => {
  expect(await isWelcome(distant, { mode: 'any', token: () => token })).toBe(true);
});

test('the token is that of the secret, at every start', () => {
  expect(token).toMatch(/^[0-9a-f]{32}$/);
  expect(sandboxToken(createSecrets('a secret of the tests, and of nothing else'))).toBe(token);
  expect(sandboxToken(createSecrets('another secret, just as long as the first'))).not.toBe(token);
});

test('a rotation of the secret ends the links from before, once its key is in use', async () => {
  const keyOf = (id: number, usableFromMs: number): DataKey => ({
    id,
    bytes: Buffer.alloc(dataKeyBytes, id),
    usableFromMs,
  });
  let nowMs = 1_000;
  const keyRing = createKeyRing([keyOf(1, 0)], () => nowMs);
  const access = { mode: 'token', token: () => sandboxToken(keyRing) } as const;
  const before = sandboxToken(keyRing);
  keyRing.replaceKeys([keyOf(1, 0), keyOf(2, 2_000)]);
  expect(await isWelcome({ ...distant, query: { token: before } }, access)).toBe(true);

  nowMs = 2_000;
  const request = { ...distant, query: { token: before } };
  expect(await isWelcome(request, access)).toBe(false);
  expect(isLinkOpened(request, access)).toBe(false);
  const cookie = withHeader('cookie', `postillion_sandbox=${before}`);
  expect(await isWelcome({ ...distant, ...cookie }, access)).toBe(false);
  expect(await isWelcome({ ...distant, query: { token: sandboxToken(keyRing) } }, access)).toBe(true);
});

test.each([
  [null, 'Path=/; HttpOnly; SameSite=Strict'],
  ['http://mail.example.com', 'Path=/; HttpOnly; SameSite=Strict'],
  ['https://example.com/post/', 'Path=/post/; HttpOnly; SameSite=Strict; Secure'],
])(
  'the cookie goes to the pages of the installation and nowhere else, behind %s',
  (publicUrl, attributes) => {
    expect(tokenCookie(loopback, publicUrl)).toBe(`postillion_sandbox=${token}; ${attributes}`);
  },
);
