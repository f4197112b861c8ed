import fc from 'fast-check';
import smpp from 'smpp';
import { describe, expect, it } from 'vitest';
import { decodeGsm, readAlphabet, splitText } from './alphabet.ts';

const extended = '\f^{}\\[~]|€';

function decode({ encoding, parts }: ReturnType<typeof splitText>): string[] {
  return parts.map((part) =>
    encoding === 'gsm7' ? decodeGsm(part) : new TextDecoder('utf-16be', { ignoreBOM: true }).decode(part),
  );
}

describe('readAlphabet', () => {
  it.each([
    ['', 'gsm7', 1],
    ['a'.repeat(160), 'gsm7', 1],
    ['a'.repeat(161), 'gsm7', 2],
    ['a'.repeat(306), 'gsm7', 2],
    ['a'.repeat(307), 'gsm7', 3],
    ['€'.repeat(80), 'gsm7', 1],
    ['€'.repeat(81), 'gsm7', 2],
    // 76 pairs in 153 places: the odd place stays empty.
    ['€'.repeat(152), 'gsm7', 2],
    ['€'.repeat(153), 'gsm7', 3],
    [`${'a'.repeat(152)}€${'a'.repeat(152)}`, 'gsm7', 3],
    ['я'.repeat(70), 'ucs2', 1],
    ['я'.repeat(71), 'ucs2', 2],
    ['я'.repeat(134), 'ucs2', 2],
    ['я'.repeat(135), 'ucs2', 3],
    ['👋'.repeat(35), 'ucs2', 1],
    // 33 pairs in 67 places.
    ['👋'.repeat(66), 'ucs2', 2],
    ['👋'.repeat(67), 'ucs2', 3],
    // A small c with a cedilla is not in the alphabet; only the capital is.
    ['Ç', 'gsm7', 1],
    ['ç', 'ucs2', 1],
    ['\u001b', 'ucs2', 1],
    ['`', 'ucs2', 1],
    ['\uffff', 'ucs2', 1],
  ] as const)('counts %j as %s in %i', (text, encoding, segments) => {
    expect(readAlphabet(text)).toEqual({ encoding, segments });
  });
});

describe('splitText', () => {
  const gsmTexts = fc.string({ unit: fc.constantFrom(...'aZ0 @\nÅΩ§', ...extended), maxLength: 700 });
  const texts = fc.oneof(gsmTexts, fc.string({ unit: 'binary', maxLength: 300 }));

  it('loses nothing, and never cuts a character in two', () => {
    fc.assert(
      fc.property(texts, (text) => {
        expect(decode(splitText(text)).join('')).toBe(text);
      }),
    );
  });

  it('splits into as many segments as are counted, none of which is too long', () => {
    fc.assert(
      fc.property(texts, (text) => {
        const { encoding, parts } = splitText(text);
        expect(readAlphabet(text)).toEqual({ encoding, segments: parts.length });
        const octetsMax = parts.length === 1 ? { gsm7: 160, ucs2: 140 } : { gsm7: 153, ucs2: 134 };
        for (const part of parts) expect(part.length).toBeLessThanOrEqual(octetsMax[encoding]);
      }),
    );
  });

  it('writes what another implementation of the alphabet reads', () => {
    const { encoding, parts } = splitText(
      `@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !"#¤%&'()*+,-./?¡Ñ§¿à${extended}`,
    );
    expect(encoding).toBe('gsm7');
    expect(parts.map((part) => smpp.encodings.ASCII.decode(part)).join('')).toBe(
      `@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !"#¤%&'()*+,-./?¡Ñ§¿à${extended}`,
    );
  });
});

describe('decodeGsm', () => {
  it('reads an unknown extension as the character without its escape, and an escape alone as a space', () => {
    expect(decodeGsm(Buffer.from([0x1b, 0x41, 0x1b, 0x1b, 0x42, 0x1b]))).toBe('A B ');
  });
});
