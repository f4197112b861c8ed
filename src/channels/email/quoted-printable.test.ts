import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { encodeQuotedPrintable, normaliseLineEnds } from './quoted-printable.ts';

function decode(encoded: string): string {
  const bytes = encoded
    .replaceAll('=\r\n', '')
    .replace(/=([0-9A-F]{2})/g, (_, hex: string) => String.fromCharCode(parseInt(hex, 16)));
  return Buffer.from(bytes, 'latin1').toString();
}

describe('quoted-printable', () => {
  it('gives back any text in lines of at most 76 characters, however long it is', () => {
    const units = fc.string({
      unit: fc.constantFrom('a', ' ', '=', 'ü', '😀', '.', 'From ', '\r\n'),
      maxLength: 300,
    });
    fc.assert(
      fc.property(units, fc.integer({ min: 1, max: 200 }), (unit, times) => {
        const text = unit.repeat(times);
        const encoded = encodeQuotedPrintable(text);
        expect(decode(encoded)).toBe(text);
        const lines = encoded.split('\r\n');
        expect(lines.filter((line) => line.length > 76 || /^\.|^From |[ \t]$/.test(line))).toEqual([]);
      }),
      { numRuns: 300 },
    );
  });

  it('gives printable text the same lines, whether or not something else in the message is escaped', () => {
    const units = fc.array(
      fc.constantFrom('a', ' ', '\t', '=', '.', 'From ', '\r\n', 'x'.repeat(70), 'lorem ipsum '),
      { maxLength: 60 },
    );
    fc.assert(
      fc.property(units, (parts) => {
        const text = parts.join('');
        expect(encodeQuotedPrintable(`ü\r\n${text}`)).toBe(`=C3=BC\r\n${encodeQuotedPrintable(text)}`);
      }),
      { numRuns: 2_000 },
    );
  });

  it('loses nothing where a long text is put together from pieces', () => {
    for (let offset = 0; offset < 80; offset += 1) {
      const text = 'a'.repeat(offset) + 'ü'.repeat(6_000);
      expect(decode(encodeQuotedPrintable(text)) === text, `${offset}`).toBe(true);
    }
  });

  it('leaves what fits on one line as it is, and breaks what does not', () => {
    expect(encodeQuotedPrintable('a'.repeat(75))).toBe('a'.repeat(75));
    expect(encodeQuotedPrintable('a'.repeat(76))).toBe(`${'a'.repeat(75)}=\r\na`);
    expect(encodeQuotedPrintable('')).toBe('');
    expect(encodeQuotedPrintable('a ')).toBe('a=20');
    expect(encodeQuotedPrintable('From me\r\n.\r\n')).toBe('=46rom me\r\n=2E\r\n');
  });

  it('knows one line end only', () => {
    expect(normaliseLineEnds('a\rb\nc\r\nd\r\r\ne\n\n')).toBe('a\r\nb\r\nc\r\nd\r\n\r\ne\r\n\r\n');
    expect(normaliseLineEnds('a\nb')).toBe('a\r\nb');
  });
});
