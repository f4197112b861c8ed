import fc from 'fast-check';
import { expect, test } from 'vitest';
import { parseSmtpUrl } from './url.ts';

test('a URL says everything that is needed', () => {
  expect(
    parseSmtpUrl(
      'smtp://post%40example.test:p%3Aw%25@mail.example.test:2525?connections=4&tls=opportunistic&name=mta.test',
    ),
  ).toEqual({
    host: 'mail.example.test',
    port: 2525,
    tls: 'opportunistic',
    isInsecure: false,
    credentials: { user: 'post@example.test', password: 'p:w%' },
    connectionsMax: 4,
    heloName: 'mta.test',
  });
});

test.each([
  ['smtp://mail.example.test', 587, 'opportunistic'],
  ['smtps://mail.example.test', 465, 'implicit'],
  ['smtp://u:p@mail.example.test', 587, 'required'],
  ['smtp://u:p@mail.example.test?insecure=1', 587, 'opportunistic'],
  ['smtp://u:p@127.0.0.1:25', 25, 'opportunistic'],
  ['smtp://[::1]:2525/?tls=off', 2525, 'off'],
])('%s means port %i with TLS %s', (url, port, tls) => {
  expect(parseSmtpUrl(url)).toMatchObject({ port, tls, connectionsMax: 32, heloName: null });
});

test.each([
  ['', /cannot be read/],
  ['mail.example.test:587', /must begin with smtp/],
  ['https://mail.example.test', /must begin with smtp/],
  ['smtp://', /no host/],
  ['smtp://mail example', /cannot be read|no host/],
  ['smtp://mail%0d%0aexample', /cannot be read|no host/],
  ['smtp://host:0', /port/],
  ['smtp://host:99999', /cannot be read/],
  ['smtp://host/path', /after its host/],
  ['smtp://host?conections=3', /unknown parameter/],
  ['smtp://host?connections=0', /from 1 to/],
  ['smtp://host?connections=1e2', /from 1 to/],
  ['smtp://host?tls=maybe', /required, opportunistic or off/],
  ['smtps://host?tls=off', /always uses TLS/],
  ['smtp://host?insecure=yes', /1 or 0/],
  ['smtp://host?name=a%20b', /host name/],
  ['smtp://user@host', /without a password/],
  ['smtp://u:%00@host', /NUL/],
  ['smtp://u:%E0%A4%A@host', /well encoded/],
])('%j is refused with a sentence that helps', (url, sentence) => {
  expect(() => parseSmtpUrl(url)).toThrow(sentence);
});

test('no error carries the password', () => {
  const faults = ['@host?x=1', '@host/path', '@', '@ho st', '@host?tls=x', '%E0@host', '@host:99999'];
  fc.assert(
    fc.property(fc.stringMatching(/^[A-Za-z0-9]{8,20}$/), fc.constantFrom(...faults), (random, fault) => {
      const password = `Pw0${random}`;
      let thrown = null;
      try {
        parseSmtpUrl(`smtp://user:${password}${fault}`);
      } catch (error) {
        thrown = error as Error;
      }
      expect(thrown).not.toBeNull();
      expect(`${thrown?.stack}${String(thrown?.cause)}${JSON.stringify(thrown)}`).not.toContain(password);
    }),
  );
});
