import { expect, test } from 'vitest';
import { isShownAddress } from './shown-address.ts';

test.each([
  ...['https://example.com/x', 'HTTP://Example.com', 'https://192.0.2.1/', 'ftp://files.internal'],
  ...['www.example.com', 'Example.com', 'example.co.uk/path?q=1#a', 'example.com:8080', 'me.github.io'],
  ...['bücher.de', 'xn--bcher-kva.de', 'ann@example.com', 'mailto:ann@example.com'],
  // What stands around it or is not seen hides it from nobody.
  ...['\n  example.com\u00a0', '→ example.com', '(example.com)', '“example.com”.', 'exam\u00adple\u200b.com'],
])('%j is an address', (text) => {
  expect(isShownAddress(text)).toBe(true);
});

test.each([
  ...['', '.', '→', 'Shop now', 'Visit www.example.com', 'example.com and more', 'Node.js', 'e.g.', 'v1.2.3'],
  ...[
    '192.0.2.1',
    'localhost',
    'co.uk',
    '@example',
    '1.000 €',
    '{{shop}}',
    '\0',
    '\ud800',
    '/path/example.com',
  ],
  'x'.repeat(8_192) + '.com',
])('%j is none', (text) => {
  expect(isShownAddress(text)).toBe(false);
});
