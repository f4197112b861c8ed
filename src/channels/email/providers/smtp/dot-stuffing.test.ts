import fc from 'fast-check';
import { expect, test } from 'vitest';
import { lineStateAfter, stuffDots } from './dot-stuffing.ts';
import type { LineState } from './dot-stuffing.ts';

/** Octets that matter here, far more often than by chance. */
const content = fc
  .array(fc.constantFrom('\r', '\n', '.', '\r\n', '\r\n.', '.\r\n', 'a'), { maxLength: 60 })
  .map((parts) => parts.join(''));

function stuffInPieces(text: string, cuts: number[]): string {
  const ends = [...new Set([...cuts.map((cut) => cut % (text.length + 1)), text.length])].sort(
    (a, b) => a - b,
  );
  let state: LineState = 'at_line_start';
  let from = 0;
  let stuffed = '';
  for (const end of ends) {
    const piece = Buffer.from(text.slice(from, end), 'latin1');
    stuffed += stuffDots(piece, state).toString('latin1');
    state = lineStateAfter(piece, state);
    from = end;
  }
  return stuffed;
}

test('a dot is doubled where a line begins with it, wherever the content is cut', () => {
  fc.assert(
    fc.property(content, fc.array(fc.nat(200), { maxLength: 12 }), (text, cuts) => {
      const expected = text.replace(/^\./, '..').replaceAll('\r\n.', '\r\n..');
      expect(stuffInPieces(text, cuts)).toBe(expected);
    }),
    { numRuns: 2_000 },
  );
});

test('no stuffed content holds the end of a message', () => {
  fc.assert(
    fc.property(content, fc.array(fc.nat(200), { maxLength: 12 }), (text, cuts) => {
      expect(`\r\n${stuffInPieces(text, cuts)}`).not.toContain('\r\n.\r\n');
    }),
  );
});

test('a piece without such a dot is not copied', () => {
  const piece = Buffer.from('a.b\r\nc.\r\n');
  expect(stuffDots(piece, 'at_line_start')).toBe(piece);
});
