import fc from 'fast-check';
import { expect, it } from 'vitest';
import { runAtOnce, stepBytesMax } from '../../platform/steps.ts';
import { encodeBase64LinesInSteps } from './base64.ts';

it('base64 in lines is the built-in encoding with a CRLF after every 76 characters', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 300 }), fc.nat(300), (bytes, from) => {
      const view = bytes.subarray(Math.min(from, bytes.length));
      const expected = Buffer.from(view)
        .toString('base64')
        .replace(/.{76}(?=.)/g, '$&\r\n');
      expect(Buffer.concat(runAtOnce(encodeBase64LinesInSteps(view))).toString('latin1')).toBe(expected);
    }),
    { numRuns: 500 },
  );
});

it('blocks end with whole lines, the last without its CRLF', () => {
  for (const excess of [-57, -1, 0, 1, 57]) {
    const bytes = Buffer.alloc(3 * stepBytesMax + excess, 'postillion');
    const blocks = runAtOnce(encodeBase64LinesInSteps(bytes));
    const text = Buffer.concat(blocks).toString('latin1');
    expect(Buffer.from(text, 'base64').equals(bytes)).toBe(true);
    expect(text.endsWith('\r\n')).toBe(false);
    expect(text.split('\r\n').slice(0, -1)).toSatisfy((lines: string[]) =>
      lines.every(({ length }) => length === 76),
    );
    expect(blocks.length).toBeGreaterThanOrEqual(3);
  }
});
