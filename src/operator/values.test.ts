import { InvalidArgumentError } from 'commander';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  collectChannel,
  collectLimit,
  collectQuota,
  parseInstant,
  parseKeyId,
  parseName,
  parseOrganization,
  parseOrganizationId,
  parsePageSize,
  parseScopes,
  parseWindowLimit,
} from './values.ts';

const id = '0199C0DE-0000-7000-8000-00000000000A';

test('what is given several times adds up, and the last word on one channel counts', () => {
  const once = collectQuota('email=1000');
  expect(collectQuota('email=unlimited', collectQuota('sms=0', once))).toEqual({ email: null, sms: 0 });
  expect(once).toEqual({ email: 1000 });
  expect(collectLimit('segments=unlimited', collectLimit('domains=5'))).toEqual({
    domains: 5,
    segments: null,
  });
  expect(collectChannel('push', collectChannel('email'))).toEqual(['email', 'push']);
});

test('ids are read in either case, and scopes with blanks and repetitions', () => {
  expect(parseOrganizationId(id)).toBe(id.toLowerCase());
  expect(parseOrganization(id)).toBe(id.toLowerCase());
  expect(parseOrganization(' Acme ')).toBe('Acme');
  expect(parseScopes(' email:send, read_only,email:send,')).toEqual(['email:send', 'read_only']);
  expect(parseInstant('2030-01-31T12:00:00+01:00')).toBe(Date.UTC(2030, 0, 31, 11));
  expect(parseName(' Ada ')).toBe('Ada');
});

const refused: [string, (text: string) => unknown, string[]][] = [
  ['a name', parseName, ['', '  ', 'a\nb', 'x'.repeat(256)]],
  ['an organization', parseOrganizationId, ['', 'acme', `${id} `]],
  ['a key', parseKeyId, ['pst_0000000000000000000000000000000000000000000']],
  ['scopes', parseScopes, ['', ',', 'email:sent', 'full_access,constructor', '__proto__']],
  ['a time', parseInstant, ['', 'tomorrow', '2030-01-31', '2030-01-31T12:00:00', '2030-02-30T12:00:00Z']],
  ['a channel', collectChannel, ['', 'fax', 'EMAIL', 'toString']],
  ['a window', parseWindowLimit, ['', '0', '-1', '1.5', '1e3', '2147483648', '０', 'unlimited']],
  ['a page', parsePageSize, ['0', '1001', 'all']],
  [
    'a quota',
    collectQuota,
    ['', 'email', 'email=', 'email=-1', 'email=1=2', 'fax=1', 'email=9007199254740992', 'constructor=1'],
  ],
  ['a limit', collectLimit, ['domains=2147483648', 'email=5', 'domain=5', 'domains= 5']],
];

test.each(refused)('%s that means nothing is refused with a sentence', (_what, parse, texts) => {
  for (const text of texts) {
    expect(() => parse(text), text).toThrow(InvalidArgumentError);
    expect(() => parse(text), text).toThrow(/\.$/);
  }
});

test('whatever is typed, a count comes out as a whole number that the database can hold, or not at all', () => {
  const typed = fc.oneof(
    fc.string(),
    fc.integer().map(String),
    fc.bigInt().map(String),
    fc.double().map(String),
  );
  fc.assert(
    fc.property(typed, (text) => {
      let quota: number | null | undefined;
      try {
        quota = collectQuota(`email=${text}`).email;
      } catch {
        return;
      }
      expect(quota === null ? text : `${quota}`).toBe(
        quota === null ? 'unlimited' : text.replace(/^0+(?=\d)/, ''),
      );
      expect(quota === null || (Number.isSafeInteger(quota) && quota! >= 0)).toBe(true);
    }),
  );
});
