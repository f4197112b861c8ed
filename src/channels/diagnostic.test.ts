import fc from 'fast-check';
import { expect, test } from 'vitest';
import { sanitiseDiagnostic } from './diagnostic.ts';

test('a diagnostic is one printable line of at most 500 characters, whatever a remote system sends', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary', maxLength: 3_000 }), (text) => {
      const diagnostic = sanitiseDiagnostic(text);
      expect(diagnostic.length).toBeLessThanOrEqual(500);
      expect(diagnostic).not.toMatch(/[\p{Cc}\p{Cs}\u2028\u2029\u202e]/u);
    }),
  );
  expect(sanitiseDiagnostic('\u001b[31mred\r\nInjected: yes\u202e ')).toBe('[31mred Injected: yes');
  expect(sanitiseDiagnostic(`${'a'.repeat(499)}😀`)).toBe('a'.repeat(499));
  expect(sanitiseDiagnostic('Adresse inconnue: é')).toBe('Adresse inconnue: é');
});
