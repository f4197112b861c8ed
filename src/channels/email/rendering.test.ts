import fc from 'fast-check';
import { expect, it } from 'vitest';
import { compileEmailText, renderEmail } from './rendering.ts';

const text = fc.option(
  fc
    .array(
      fc.constantFrom('{{a}}', '{{{a}}}', '{{b}}', '<a href="', '">', 'https://c.example/?d=', ' ', '\n'),
      {
        maxLength: 12,
      },
    )
    .map((pieces) => pieces.join('')),
);

it('renders an email that was cut before as one that was not, whichever of its parts were', () => {
  fc.assert(
    fc.property(fc.record({ subject: text, html: text, text }), fc.boolean(), (written, isSubjectOther) => {
      const values = { a: 'e f\n<g>' };
      const compiled = compileEmailText(isSubjectOther ? { ...written, subject: 'another {{b}}' } : written);
      const parts = isSubjectOther ? { ...compiled, subject: null } : compiled;
      expect(renderEmail(written, values, parts)).toEqual(renderEmail(written, values));
    }),
  );
});

it('refuses what grows too long when it was cut before, too', () => {
  const written = { subject: '{{a}}', html: null, text: 'x' };
  const rendering = renderEmail(written, { a: 'x'.repeat(999) }, compileEmailText(written));
  expect(rendering).toMatchObject({ kind: 'too_long' });
});
