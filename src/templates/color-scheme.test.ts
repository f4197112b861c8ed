import { describe, expect, test } from 'vitest';
import { fixColorScheme } from './color-scheme.ts';

describe('fixing the colour scheme of a template', () => {
  test('answers what asks for the preference', () => {
    const css = '@media (prefers-color-scheme: dark) { a {} } @media (prefers-color-scheme:light) { b {} }';
    expect(fixColorScheme(css, 'dark')).toBe('@media (min-width: 0) { a {} } @media (max-width: 0) { b {} }');
    expect(fixColorScheme(css, 'light')).toBe(
      '@media (max-width: 0) { a {} } @media (min-width: 0) { b {} }',
    );
  });

  test('leaves the other conditions of a query as they are', () => {
    expect(
      fixColorScheme('@media screen and (max-width: 600px) and ( Prefers-Color-Scheme : DARK ) {}', 'light'),
    ).toBe('@media screen and (max-width: 600px) and (max-width: 0) {}');
    expect(fixColorScheme('<style media="(prefers-color-scheme: dark)">', 'dark')).toBe(
      '<style media="(min-width: 0)">',
    );
    expect(fixColorScheme('@media (prefers-color-scheme) {}', 'light')).toBe('@media (min-width: 0) {}');
    expect(fixColorScheme('@media (prefers-color-scheme: no-preference) {}', 'light')).toBe(
      '@media (max-width: 0) {}',
    );
  });

  test('declares one scheme where the template declares both', () => {
    const head =
      '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">' +
      '<meta content="dark light" name=color-scheme><meta name="supported-color-schemes" content="light dark">' +
      '<style>:root { color-scheme: light dark; supported-color-schemes: light dark; }</style>';
    expect(fixColorScheme(head, 'dark')).toBe(
      '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="dark">' +
        '<meta content="dark" name=color-scheme><meta name="supported-color-schemes" content="light dark">' +
        '<style>:root { color-scheme: dark; supported-color-schemes: light dark; }</style>',
    );
  });

  test('keeps a template to the only scheme that it declares, and its text as it is', () => {
    const html =
      '<meta name="color-scheme" content="light only"><style>:root { color-scheme: light }</style>' +
      '<p>From light dark chocolate to the prefers-color-scheme of your dreams</p>';
    expect(fixColorScheme(html, 'dark')).toBe(html);
  });
});
