import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { runAtOnce } from '../../platform/steps.ts';
import { encodeTextInSteps, type TextBody, textStepLengthMax } from './text-body.ts';

const withLineEnds = (text: string) => text.replace(/\r\n|\r|\n/g, '\r\n');

const written = ({ body }: TextBody) =>
  body.map((piece) => Buffer.from(piece as string | Uint8Array).toString('latin1')).join('');

function decode(encoded: TextBody): string {
  const text = written(encoded);
  if (encoded.encoding === '7bit') return text;
  if (encoded.encoding === 'base64') return Buffer.from(text, 'base64').toString();
  const bytes = text
    .replaceAll('=\r\n', '')
    .replace(/=([0-9A-F]{2})/g, (_, hex: string) => String.fromCharCode(parseInt(hex, 16)));
  return Buffer.from(bytes, 'latin1').toString();
}

function countSteps(steps: Generator<undefined>): number {
  let count = 1;
  while (steps.next().done !== true) count += 1;
  return count;
}

describe('the body of a text part', () => {
  it('says the same however small the steps are in which it is encoded', () => {
    const texts = fc
      .array(
        fc.constantFrom(
          ...['a', ' ', '\t', '=', 'ü', '😀', '.', 'From ', '\r\n', '\n', '\r'],
          ...['x'.repeat(80), 'Привет'],
        ),
        { maxLength: 60 },
      )
      .map((parts) => parts.join(''));
    fc.assert(
      fc.property(texts, fc.integer({ min: 2, max: 40 }), (text, stepLengthMax) => {
        const encoded = runAtOnce(encodeTextInSteps(text, stepLengthMax));
        expect(decode(encoded)).toBe(withLineEnds(text));
        if (encoded.encoding === '7bit') return;
        const lines = written(encoded).split('\r\n');
        expect(lines.filter((line) => line.length > 76)).toEqual([]);
        expect(
          encoded.encoding === 'base64' ? [] : lines.filter((line) => /^\.|^From |[ \t]$/.test(line)),
        ).toEqual([]);
      }),
      { numRuns: 3_000 },
    );
  });

  it('is the same to the octet in one step and in many, where lines are shorter than a step', () => {
    const lines = fc.array(
      fc.constantFrom('', 'a', 'Grüße aus Köln, wo es heute regnet', 'From here', '.', 'x'.repeat(99)),
      { maxLength: 40 },
    );
    fc.assert(
      fc.property(lines, fc.constantFrom('\r\n', '\n', '\r'), (parts, lineEnd) => {
        const text = parts.join(lineEnd);
        const [whole, cut] = [text.length + 2, 101].map((lengthMax) =>
          runAtOnce(encodeTextInSteps(text, lengthMax)),
        );
        expect(written(cut!)).toBe(written(whole!));
        expect(cut!.encoding).toBe(whole!.encoding);
      }),
      { numRuns: 1_000 },
    );
  });

  it.each([
    ['empty lines', '\n', '7bit'],
    ['old line ends', '\r', '7bit'],
    ['one line', 'a', 'quoted-printable'],
    ['equals signs', '=', 'base64'],
    ['tags', '<a href="https://example.com/">x</a>', 'quoted-printable'],
    ['emoji', '😀', 'base64'],
  ])('takes steps of bounded size with text of %s', (_, unit, encoding) => {
    const text = unit.repeat(Math.ceil(1_000_000 / unit.length));
    const steps = countSteps(encodeTextInSteps(text));
    expect(steps).toBeGreaterThanOrEqual(Math.floor(text.length / textStepLengthMax) * 2);
    const encoded = runAtOnce(encodeTextInSteps(text));
    expect(encoded.encoding).toBe(encoding);
    expect(decode(encoded) === withLineEnds(text)).toBe(true);
  });
});
