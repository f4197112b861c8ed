import fc from 'fast-check';
import { expect, it } from 'vitest';
import { runAtOnce } from '../../platform/steps.ts';
import { encodeBase64LinesInSteps } from './base64.ts';

it('base64 in lines is the built-in encoding with a CRLF after every 76 characters', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 300 }), fc.nat(300), (bytes, from) => {
      const view = bytes.subarray(Math.min(from, bytes.length));
      const expected = Buffer.from(view)
        .toString('base64')
        .replace(/.{76}(?=.)/g, '$&\r\n');
      expect(Buffer.from(runAtOnce(encodeBase64LinesInSteps(view))).toString('latin1')).toBe(expected);
    }),
    { numRuns: 500 },
  );
});
