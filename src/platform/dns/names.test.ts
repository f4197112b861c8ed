import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { canonicalName, reverseName } from './names.ts';

describe('a domain name', () => {
  it.each([
    ['Example.TEST', 'example.test'],
    ['example.test.', 'example.test'],
    ['_dmarc.example.test', '_dmarc.example.test'],
    ['test', 'test'],
    [`${'a'.repeat(63)}.test`, `${'a'.repeat(63)}.test`],
    [`${'abcdefg.'.repeat(31)}abcde.`, `${'abcdefg.'.repeat(31)}abcde`],
  ])('%j is %j', (text, name) => {
    expect(canonicalName(text)).toBe(name);
  });

  it.each([
    '',
    '.',
    '..',
    '.test',
    'a..test',
    'test..',
    `${'a'.repeat(64)}.test`,
    `${'abcdefg.'.repeat(31)}abcdef`,
    'a b.test',
    'a\0.test',
    'a\r\n.test',
    'bücher.test',
    // The Kelvin sign, which is a plain k in lower case.
    '\u212a.test',
    'a'.repeat(1_000_000),
  ])('%j is none', (text) => {
    expect(canonicalName(text)).toBeNull();
  });

  it('stays what it is once it is canonical', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary-ascii', maxLength: 300 }), (text) => {
        const name = canonicalName(text);
        if (name !== null) expect(canonicalName(name)).toBe(name);
      }),
    );
  });
});

describe('the name of an address', () => {
  it.each([
    ['192.0.2.1', '1.2.0.192.in-addr.arpa'],
    ['::ffff:192.0.2.1', '1.2.0.192.in-addr.arpa'],
    ['2001:DB8::567:89ab', 'b.a.9.8.7.6.5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa'],
  ])('of %s is %s', (address, name) => {
    expect(reverseName(address)).toBe(name);
  });

  it.each(['', 'example.test', '192.0.2', '0x7f.1', '192.0.2.1:53', 'fe80::1%lo', '[::1]'])(
    '%j has none',
    (text) => {
      expect(reverseName(text)).toBeNull();
    },
  );
});
