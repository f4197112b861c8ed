import fc from 'fast-check';
import { expect, test } from 'vitest';
import { isWelcome } from './visitor.ts';

const local = {
  params: {},
  query: {},
  remoteAddress: '127.0.0.1',
  host: '127.0.0.1:8025',
  isForwarded: false,
  method: 'GET',
  form: new URLSearchParams(),
  header: () => undefined,
  userAgent: '',
  purpose: '',
};
const access = { isPublic: false };

test.each(['127.0.0.1', '127.8.9.10', '::1', '::ffff:127.0.0.1'])(
  'whoever asks from %s is on this machine',
  (remoteAddress) => {
    expect(isWelcome({ ...local, remoteAddress }, access)).toBe(true);
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
  expect(isWelcome({ ...local, remoteAddress }, access)).toBe(false);
});

test.each(['localhost', 'LOCALHOST:8025', '127.0.0.1', '127.1.2.3:80', '[::1]', '[::1]:8025'])(
  'the host %s names this machine',
  (host) => {
    expect(isWelcome({ ...local, host }, access)).toBe(true);
  },
);

test.each([
  '',
  'evil.example',
  'localhost.evil.example',
  '127.0.0.1.evil.example',
  'evil.example@localhost',
  'localhost@evil.example',
  'localhost/evil.example',
  'localhost:80:80',
  'example.com',
  'mail.example.com:443',
  '0.0.0.0',
  '[::2]',
  '127.1',
])('the host "%s" does not, as in a rebound name', (host) => {
  expect(isWelcome({ ...local, host }, access)).toBe(false);
});

test('what came through a proxy on this machine did not come from this machine', () => {
  expect(isWelcome({ ...local, isForwarded: true }, access)).toBe(false);
});

test('no registrable name passes for this machine', () => {
  fc.assert(
    fc.property(fc.domain(), fc.nat(65_535), (domain, port) => {
      expect(isWelcome({ ...local, host: `${domain}:${port}` }, access)).toBe(false);
    }),
  );
});

test('a public sandbox is for everyone', () => {
  const request = { ...local, remoteAddress: '8.8.8.8', host: 'evil.example' };
  expect(isWelcome(request, { isPublic: true })).toBe(true);
});
