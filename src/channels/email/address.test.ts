import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { foldAddress, parseAddress } from './address.ts';

const atext = fc.constantFrom(..."abcXYZ019!#$%&'*+-/=?^_`{|}~");
const atom = fc.string({ unit: atext, minLength: 1, maxLength: 20 });
const localParts = fc
  .array(atom, { minLength: 1, maxLength: 3 })
  .map((atoms) => atoms.join('.'))
  .filter((text) => !text.includes('=?'));
const labels = fc
  .string({ unit: fc.constantFrom(...'abcXYZ019'), minLength: 1, maxLength: 20 })
  .filter((label) => !/^xn/i.test(label));
const domains = fc
  .tuple(fc.array(labels, { minLength: 1, maxLength: 4 }), fc.constantFrom('com', 'Example', 'co2'))
  .map(([parts, last]) => [...parts, last].join('.'));

describe('an address', () => {
  it('is given as submitted, for comparison, and for the envelope', () => {
    expect(parseAddress('Jane.Doe+x@Bücher.Example')).toEqual({
      address: 'Jane.Doe+x@Bücher.Example',
      normalised: 'jane.doe+x@xn--bcher-kva.example',
      envelope: 'Jane.Doe+x@xn--bcher-kva.example',
      domain: 'xn--bcher-kva.example',
      isInternational: false,
    });
  });

  it('may go beyond ASCII in front of the at sign', () => {
    expect(parseAddress('Ju\u0308rgen@Bu\u0308cher.Example')).toEqual({
      address: 'Jürgen@Bücher.Example',
      normalised: 'jürgen@xn--bcher-kva.example',
      envelope: 'Jürgen@xn--bcher-kva.example',
      domain: 'xn--bcher-kva.example',
      isInternational: true,
    });
    for (const address of [
      '用户@例子.公司',
      'Владимир.П@пример.рф',
      'राम@example.com',
      'คำ+x@example.com',
      '👩@example.com',
    ])
      expect(parseAddress(address)).toMatchObject({ address, isInternational: true });
  });

  it.each([
    ['composed or not', 'jürgen@example.com', 'ju\u0308rgen@example.com'],
    ['in any case', 'ЮРИЙ@example.com', 'юрий@example.com'],
    ['with the domain in both forms', '用户@例子.公司', '用户@xn--fsqu00a.xn--55qx5d'],
    ['with either small sigma', 'ΝΙΚΟΣ.ΠΑΠ@example.com', 'νικος.παπ@example.com'],
    ['where lower case is longer', 'İ@example.com', 'i\u0307@example.com'],
  ])('is one address, %s', (_how, first, second) => {
    expect(parseAddress(first)!.normalised).toBe(parseAddress(second)!.normalised);
    expect(foldAddress(first.slice(0, first.indexOf('@')))).toBe(
      parseAddress(second)!.normalised.split('@')[0],
    );
  });

  it('is another address where only the language says that letters are alike', () => {
    expect(parseAddress('straße@example.com')!.normalised).not.toBe(
      parseAddress('strasse@example.com')!.normalised,
    );
    expect(parseAddress('ılgaz@example.com')!.normalised).not.toBe(
      parseAddress('ilgaz@example.com')!.normalised,
    );
  });

  it('may have joiners in its domain where they are letters', () => {
    expect(parseAddress('a@نامه\u200cای.com')?.domain).toBe('xn--mgba3gch31f060k.com');
  });

  it('is accepted whatever plain dot-atom it has', () => {
    fc.assert(
      fc.property(localParts, domains, (localPart, domain) => {
        const parsed = parseAddress(`${localPart}@${domain}`);
        expect(parsed?.envelope).toBe(`${localPart}@${domain.toLowerCase()}`);
        expect(parsed?.normalised).toBe(`${localPart}@${domain}`.toLowerCase());
      }),
    );
  });

  it('keeps its meaning when it is read again', () => {
    const anything = fc.oneof(
      fc.string({ unit: 'binary', maxLength: 40 }),
      fc
        .tuple(localParts, fc.string({ unit: 'grapheme', maxLength: 20 }))
        .map(([a, b]) => `${a}@${b}.example`),
      fc
        .tuple(fc.string({ unit: 'grapheme', maxLength: 12 }), fc.constantFrom('b.example', 'Ü.example'))
        .map(([a, b]) => `${a}@${b}`),
      fc.string({ unit: 'binary', maxLength: 3 }).map((a) => `${a}@b.example`),
    );
    fc.assert(
      fc.property(anything, (text) => {
        const parsed = parseAddress(text);
        if (parsed === null) return;
        const localPart = parsed.isInternational ? '[^\\0- "(),:;<>@[\\]\\\\\\x7f-\\xa0]+' : '[!-~]+';
        expect(parsed.envelope).toMatch(new RegExp(`^${localPart}@[a-z0-9.-]+$`));
        expect(parseAddress(parsed.envelope)?.normalised).toBe(parsed.normalised);
        expect(parseAddress(parsed.address)).toEqual(parsed);
        expect(parseAddress(parsed.normalised)).toMatchObject({
          normalised: parsed.normalised,
          domain: parsed.domain,
          isInternational: parsed.isInternational,
        });
      }),
      { numRuns: 2_000 },
    );
  });

  it.each([
    '',
    '@',
    'a',
    'a@',
    '@example.com',
    'a@b',
    'a@localhost',
    ' a@example.com',
    'a@example.com ',
    'a@example.com\n',
    'a@exam ple.com',
    'a@example.com\r\nBcc: b@example.com',
    'a b@example.com',
    'a@example.com,b@example.com',
    'a@example.com;b@example.com',
    '"a"@example.com',
    '"a@b"@example.com',
    'Ada <a@example.com>',
    '<a@example.com>',
    'a(comment)@example.com',
    'a@example.com(comment)',
    '=?utf-8?q?a=40b.com?=@example.com@x.com',
    '=?utf-8?q?a=40b.com?=@example.com',
    'a=?x?=b@example.com',
    '.a@example.com',
    'a.@example.com',
    'a..b@example.com',
    'a@@example.com',
    'a@b@example.com',
    'a@[127.0.0.1]',
    'a@[IPv6:::1]',
    'a@127.0.0.1',
    'a@127.1',
    'a@1.0x7f',
    'a@example.123',
    'a@example.com.',
    'a@.example.com',
    'a@example..com',
    'a@-example.com',
    'a@example-.com',
    'a@ex_ample.com',
    'a@ex%61mple.com',
    'a@example.com/x',
    'a@example.com:25',
    'a@example.com#x',
    'a@bücher.example.',
    'a@bücher',
    'a@bü%63her.example',
    'a@bücher.example/x',
    'a@bücher。127',
    'ü b@example.com',
    'ü@exam ple.com',
    'ü@@example.com',
    '"ü"@example.com',
    'ü<@example.com',
    '.ü@example.com',
    'ü.@example.com',
    'ü..b@example.com',
    'ü\0@example.com',
    'ü\r\nRCPT TO:<b@example.com>',
    'ü\x7f@example.com',
    'ü\u0085@example.com',
    'ü\u00a0@example.com',
    'ü\u3000@example.com',
    'ü\u2028@example.com',
    'ü\ud800@example.com',
    'ü\u200b@example.com',
    'ü\u200d@example.com',
    'ü\ufe0f@example.com',
    'ü\u3164@example.com',
    'ü\u034f@example.com',
    'ü\u00ad@example.com',
    '\ufeffü@example.com',
    '\u202eü@example.com',
    '\u200fü@example.com',
    '\u2066ü@example.com',
    'ü\u0378@example.com',
    'ü\uffff@example.com',
    'ü\ue000@example.com',
    'j\ufffdrgen@example.com',
    '\u0338ü@example.com',
    'ü.\u0301b@example.com',
    '\u212a@example.com',
    'ü\uff20b@example.com',
    'ü\uff0c@example.com',
    'ü\u2025b@example.com',
    'ü\u00b4@example.com',
    '=?ü?=@example.com',
    '\uff1d\uff1fü?=@example.com',
    'a\0@example.com',
    'a@exam\0ple.com',
    'a@xn--a.com',
    'a@exam\u200bple.com',
    'a@exam\u00adple.com',
    'a@exam\u2060ple.com',
    'a@example.com\ufeff',
    'a@\u034fexample.com',
    'a@example\ufe0f.com',
    'a@exam\u200dple.com',
    'ü@exam\u00adple.com',
    'a@ü\u3000.com',
    'a@\ud800.com',
  ])('%j is refused', (text) => {
    expect(parseAddress(text)).toBeNull();
  });

  it('has at most 64 octets before the at sign, 63 in a label, 253 in the domain and 254 in all', () => {
    const label = 'a'.repeat(63);
    expect(parseAddress(`${'a'.repeat(64)}@example.com`)).not.toBeNull();
    expect(parseAddress(`${'a'.repeat(65)}@example.com`)).toBeNull();
    expect(parseAddress(`a@${label}.com`)).not.toBeNull();
    expect(parseAddress(`a@${label}a.com`)).toBeNull();
    const domain = `${label}.${label}.${label}.${'a'.repeat(56)}.com`;
    expect(parseAddress(`a@${domain}`)?.address).toHaveLength(254);
    expect(parseAddress(`ab@${domain}`)).toBeNull();
    expect(parseAddress(`a@${'ü.'.repeat(60)}com`)).toBeNull();
    expect(parseAddress(`${'a.'.repeat(5_000_000)}@example.com`)).toBeNull();
    expect(parseAddress(`${'ü'.repeat(32)}@example.com`)).not.toBeNull();
    expect(parseAddress(`${'ü'.repeat(33)}@example.com`)).toBeNull();
    // Three octets in lower case.
    expect(parseAddress(`${'İ'.repeat(21)}@example.com`)).not.toBeNull();
    expect(parseAddress(`${'İ'.repeat(22)}@example.com`)).toBeNull();
    expect(parseAddress(`ü@${domain}`)).toBeNull();
    expect(parseAddress(`ü@${domain.slice(1)}`)).not.toBeNull();
    expect(parseAddress(`${'ü'.repeat(5_000_000)}@example.com`)).toBeNull();
  });
});
