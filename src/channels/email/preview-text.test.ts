import { expect, test } from 'vitest';
import { insertPreviewText } from './preview-text.ts';
import { makeTextPart } from './text-part.ts';

const shown = (html: string) => insertPreviewText(html, 'Soon & {{name}}').replace(/(&#8203;&nbsp;)+/, '…');
const hidden =
  '<div style="display:none;overflow:hidden;max-height:0;mso-hide:all">Soon &amp; {{name}}…</div>';

test.each([
  [
    '<html><body class="a>b"><p>x</p></body></html>',
    `<html><body class="a>b">${hidden}<p>x</p></body></html>`,
  ],
  ['<BODY\n>x', `<BODY\n>${hidden}x`],
  ['<!-- <body> --><body>x<body>', `<!-- <body> --><body>${hidden}x<body>`],
  ['<p>no body</p>', `${hidden}<p>no body</p>`],
  ['<title><body></title><body>x', `<title><body></title><body>${hidden}x`],
  ['<!doctype html><p>x</p>', `<!doctype html>${hidden}<p>x</p>`],
  [
    '<!DOCTYPE html><html lang="en"><head><title>x</title></head><p>x</p><p></head>',
    `<!DOCTYPE html><html lang="en"><head><title>x</title></head>${hidden}<p>x</p><p></head>`,
  ],
  ['<html><p>x</p><body>', `<html>${hidden}<p>x</p><body>`],
  ['', hidden],
])('it stands first in the body of %s', (html, expected) => {
  expect(shown(html)).toBe(expected);
});

test('it stands after the tag of a body that begins far down', () => {
  const head = `<head><style>${'p { color: red } '.repeat(2_000)}</style></head>`;
  expect(shown(`${head}<body>x`)).toBe(`${head}<body>${hidden}x`);
});

test('a text part leaves it out', () => {
  expect(makeTextPart(insertPreviewText('<body><p>Hello</p></body>', 'Soon'))).toBe('Hello');
});

test('hostile HTML is looked through once', () => {
  for (const html of ['<'.repeat(2_000_000), '<body '.repeat(300_000), '<div>'.repeat(400_000)]) {
    expect(insertPreviewText(html, 'Soon')).toContain('Soon');
  }
});
