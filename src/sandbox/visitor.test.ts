import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { PageRequest } from '../platform/http/route.ts';
import { createSecrets } from '../platform/secrets.ts';
import { isLinkOpened, isWelcome, sandboxToken, tokenCookie } from './visitor.ts';

const local: PageRequest = {
  params: {},
  query: {},
  repeatedQuery: [],
  remoteAddress: '127.0.0.1',
  host: '127.0.0.1:8025',
  localPort: 8025,
  httpVersion: '1.1',
  isForwarded: false,
  method: 'GET',
  form: new URLSearchParams(),
  header: () => undefined,
  userAgent: '',
  purpose: '',
};
const token = sandboxToken(createSecrets('a secret of the tests, and of nothing else'));
const loopback = { mode: 'loopback', token } as const;
const withHeader = (name: string, value: string) => ({
  header: (asked: string) => (asked === name ? value : undefined),
});

test.each(['127.0.0.1', '127.8.9.10', '::1', '::ffff:127.0.0.1'])(
  'whoever asks from %s is on this machine',
  (remoteAddress) => {
    expect(isWelcome({ ...local, remoteAddress }, loopback)).toBe(true);
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
  expect(isWelcome({ ...local, remoteAddress }, loopback)).toBe(false);
});

test.each(['localhost:8025', 'LOCALHOST:8025', '127.0.0.1:8025', '127.1.2.3:8025', '[::1]:8025'])(
  'the host %s names this machine',
  (host) => {
    expect(isWelcome({ ...local, host }, loopback)).toBe(true);
  },
);

test.each(['localhost', '127.0.0.1', '[::1]'])('the host %s means port 80', (host) => {
  expect(isWelcome({ ...local, host }, loopback)).toBe(false);
  expect(isWelcome({ ...local, host, localPort: 80 }, loopback)).toBe(true);
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
    expect(isWelcome({ ...local, host, localPort }, loopback)).toBe(false);
    expect(isWelcome({ ...local, host: `${host}:8025` }, loopback)).toBe(false);
  }
});

test('what came through a proxy on this machine did not come from this machine', () => {
  expect(isWelcome({ ...local, isForwarded: true }, loopback)).toBe(false);
  expect(isWelcome({ ...local, httpVersion: '1.0' }, loopback)).toBe(false);
  expect(isWelcome({ ...local, host: 'localhost:9000' }, loopback)).toBe(false);
});

test('no registrable name passes for this machine', () => {
  fc.assert(
    fc.property(fc.domain(), (domain) => {
      expect(isWelcome({ ...local, host: `${domain}:8025` }, loopback)).toBe(false);
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

test('whoever has the token is welcome from anywhere, whichever way it comes', () => {
  for (const mode of ['loopback', 'token'] as const) {
    const access = { mode, token };
    expect(isWelcome(distant, access)).toBe(false);
    for (const given of [
      { query: { token } },
      withHeader('authorization', `Bearer ${token}`),
      withHeader('cookie', `a=b; postillion_sandbox=${token}; c=d`),
    ]) {
      expect(isWelcome({ ...distant, ...given }, access)).toBe(true);
    }
  }
});

test('no other text is the token', () => {
  const access = { mode: 'token', token } as const;
  const wrong = fc.oneof(
    fc.string(),
    fc.nat(token.length - 1).map((length) => token.slice(0, length)),
    fc.constantFrom(`${token}0`, token.toUpperCase(), ` ${token}`, `0${token}`),
  );
  fc.assert(
    fc.property(wrong, (given) => {
      fc.pre(given !== token);
      expect(isWelcome({ ...distant, query: { token: given } }, access)).toBe(false);
      expect(isWelcome({ ...distant, ...withHeader('cookie', `postillion_sandbox=${given}0`) }, access)).toBe(
        false,
      );
      expect(isLinkOpened({ ...distant, query: { token: given } }, access)).toBe(false);
    }),
  );
});

test('with `token`, being on this machine is not enough', () => {
  expect(isWelcome(local, { mode: 'token', token })).toBe(false);
});

test('a public sandbox is for everyone', () => {
  expect(isWelcome(distant, { mode: 'any', token })).toBe(true);
});

test('the token is that of the secret, at every start', () => {
  expect(token).toMatch(/^[0-9a-f]{32}$/);
  expect(sandboxToken(createSecrets('a secret of the tests, and of nothing else'))).toBe(token);
  expect(sandboxToken(createSecrets('another secret, just as long as the first'))).not.toBe(token);
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
