import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { readAnswerText } from './answer-text.ts';

test.each([
  ['{"error":"é 😀"}', '{"error":"é 😀"}'],
  ['a\r\nb\tc\n', 'a\nb\tc\n'],
  ['a\0b\u001b[31mc\u007f', 'a b [31mc '],
  ['\u202egnp.exe\u2028', ' gnp.exe '],
  ['', ''],
])('%j is shown as %j', (text, expected) => {
  expect(readAnswerText(Buffer.from(text), null)).toBe(expected);
});

test('an answer is cut after 1,024 octets, and no character in two', () => {
  expect(readAnswerText(Buffer.from('x'.repeat(5_000)), null)).toBe('x'.repeat(1_024));
  expect(readAnswerText(Buffer.from(`x${'é'.repeat(600)}`), null)).toBe(`x${'é'.repeat(511)}`);
  // A kilobyte of octets that are no text would be three as marks for each.
  expect(readAnswerText(Buffer.alloc(2_000, 0xff), null)).toBe('\ufffd');
  expect(readAnswerText(Buffer.from('a\xff'.repeat(800), 'latin1'), null)).toBe('a\ufffd'.repeat(256));
});

test('what is compressed is named, and neither unpacked nor shown', () => {
  const bomb = gzipSync(Buffer.alloc(1_000_000));
  for (const encoding of ['gzip', 'br', 'GZIP', 'x'])
    expect(readAnswerText(bomb.subarray(0, 1_024), encoding)).toBe('(compressed, and not unpacked)');
  expect(readAnswerText(Buffer.alloc(0), 'gzip')).toBe('');
  expect(readAnswerText(Buffer.from('ok'), 'identity')).toBe('ok');
});

test('whatever the octets are, the text is short, well-formed and without control characters', () => {
  const octets = fc.oneof(
    fc.uint8Array({ maxLength: 3_000 }),
    fc.string({ unit: 'binary', maxLength: 3_000 }),
  );
  fc.assert(
    fc.property(octets, (bytes) => {
      const text = readAnswerText(Buffer.from(bytes as Uint8Array), null);
      expect(Buffer.byteLength(text)).toBeLessThanOrEqual(1_024);
      expect(text.isWellFormed()).toBe(true);
      expect(text).not.toMatch(/[^\P{Cc}\n\t]/u);
    }),
  );
});
