import { readdirSync, readFileSync } from 'node:fs';
import { compile } from 'html-to-text';
import { expect, test } from 'vitest';
import { makeTextPart } from './text-part.ts';

test('a text part says what the HTML says, in lines that can be read, with its links and placeholders', () => {
  const html = `<!doctype html><html><head><title>Hi</title><style>p { color: red }</style></head><body>
    <div style="display:none;max-height:0">Preview</div>
    <table role="presentation"><tr><td><h1>Hello {{first_name}}</h1></td></tr>
    <tr><td><p>It costs 5 &lt; 6 &amp; {{{raw}}}.</p><ul><li>One</li><li>Two</li></ul>
    <img src="https://example.com/a.png" alt="A cat"><a href="{{action_url}}">Go on</a>
    <a href="https://example.com">https://example.com</a></td></tr></table></body></html>`;
  expect(makeTextPart(html)).toBe(
    [
      'Hello {{first_name}}',
      '',
      'It costs 5 < 6 & {{{raw}}}.',
      '',
      ' * One',
      ' * Two',
      '',
      'Go on ({{action_url}}) https://example.com',
    ].join('\n'),
  );
});

test.each([
  ['cells', '<table><tr><th>Total</th><td>5</td></tr><tr><td>Paid</td></tr></table>', 'Total 5\nPaid'],
  ['quotations', 'a<blockquote>b<br>c</blockquote>d', 'a\n\nb\nc\n\nd'],
  [
    'placeholders after long lines',
    `<p>${'word '.repeat(20)}{{ name }}</p>`,
    `${'word '.repeat(20)}{{ name }}`,
  ],
  [
    'lists in lists',
    '<ol><li>One<ul><li>a<br>b<li>c</ul></li><li><p>Two</p></li><li><p>Three</p></ol>After',
    '1. One\n     * a\n       b\n     * c\n 2. Two\n 3. Three\n\nAfter',
  ],
  ['a list within an item without text', '<ul><li><ul><li>x</ul><li>y</ul>', '*  * x\n * y'],
  [
    'numbers',
    '<ol start="9"><li>x<li>y</ol><ol type="A" start="26"><li>x<li>y</ol>',
    '9. x\n 10. y\n\n Z. x\n AA. y',
  ],
  ['roman numbers', '<ol type="i" start="1994"><li>x<li>y</ol>', 'mcmxciv. x\n mcmxcv. y'],
  ['numbers that cannot be written so', '<ol type="i" start="3999999"><li>x</ol>', '3999999. x'],
  ['lines of their own', '<div>a<div>b</div>c</div><pre>d\n  e\n\nf</pre>g', 'a\nb\nc\n\nd\n  e\n\nf\n\ng'],
  [
    'a link by its address, or none',
    '<a href="mailto:a@b.example">a@b.example</a> <a href="#x">y</a> <a>z</a>',
    'a@b.example y z',
  ],
  ['a picture that is a link', '<a href="https://example.com"><img src="x.png"></a>', 'https://example.com'],
  [
    'links that show their address',
    '<ul><li><a href="https://e.co">https://e.<b>co</b></a><li><a href="https://e.co">https://e. co</a></ul>',
    '* https://e.co\n * https://e. co (https://e.co)',
  ],
  [
    'elements and lists of any name',
    '<constructor>a</constructor><ol type="__proto__"><li>b</ol><ol type="toString"><li>c</ol>',
    'a\n\n 1. b\n\n 1. c',
  ],
  [
    'what is seen alone',
    'a<template>b</template><script>c</script><p style="display: none">d<br>e</p>f',
    'af',
  ],
])('it keeps %s as people read them', (_what, html, text) => {
  expect(makeTextPart(html)).toBe(text);
});

test.each([
  ['nothing but markup', '<p><br></p>'],
  ['more than is looked at', `<p>${'x'.repeat(262_144)}</p>`],
  ['a deep nest', `${'<div>'.repeat(52_000)}x`],
  ['a deep nest of what is closed by itself', '<b>'.repeat(80_000)],
  ['tables in tables', '<table><tr><td>'.repeat(17_000)],
  ['lists in lists', `${'<ol start="999999999"><li>'.repeat(99)}x`],
  [
    'what makes many times as much text',
    `${'<ol start="999999999"><li>'.repeat(10)}${'<br>x'.repeat(51_000)}`,
  ],
])('there is none for %s', (_what, html) => {
  expect(makeTextPart(html)).toBeNull();
});

test.each([
  ['brackets', '<'.repeat(260_000)],
  ['comments', '<!--'.repeat(65_000)],
  ['attributes', `<p ${'a=1 '.repeat(65_000)}>x</p>`],
  ['a list', `<ul>${'<li>x'.repeat(50_000)}</ul>`],
  ['spaces', `x${' '.repeat(260_000)}y`],
  ['one word', 'w'.repeat(262_144)],
  ['entities', '&nbsp;'.repeat(43_000)],
  ['lines', '<br>'.repeat(65_000)],
  ['quotations in quotations', `${'<blockquote>'.repeat(199)}${'<br>x'.repeat(51_000)}`],
  ['rules', '<hr>'.repeat(65_000)],
  ['headings that are never closed', '<h1>x'.repeat(52_000)],
  ['links', '<a href="https://example.com">x'.repeat(8_000)],
  ['links that end', '<a href="https://e.co">x</a> '.repeat(9_000)],
])('hostile %s come to an end', (_what, html) => {
  expect(() => makeTextPart(html)).not.toThrow();
});

const gallery = new URL('../../../gallery/', import.meta.url);
const slugs = readdirSync(gallery, { withFileTypes: true }).flatMap((entry) =>
  entry.isDirectory() ? [entry.name] : [],
);

/** Another implementation, told to lay out as ours does. */
const oracle = compile({
  wordwrap: false,
  formatters: {
    cell: (element, walk, builder) => {
      walk(element.children, builder);
      builder.addInline(' ');
    },
  },
  selectors: [
    ...['h1', 'h2', 'h3', 'h4', 'h5', 'h6'].map((selector) => ({ selector, options: { uppercase: false } })),
    ...['title', 'img', '[style*="display:none"]', '[style*="display: none"]'].map((selector) => ({
      selector,
      format: 'skip',
    })),
    {
      selector: 'a',
      options: { hideLinkHrefIfSameAsText: true, linkBrackets: ['(', ')'] as [string, string] },
    },
    { selector: 'table', format: 'block' },
    { selector: 'tr', format: 'block', options: { leadingLineBreaks: 1, trailingLineBreaks: 1 } },
    { selector: 'hr', options: { length: 10 } },
    { selector: 'td', format: 'cell' },
    { selector: 'th', format: 'cell' },
  ],
});
/** Where lines end within a block is a matter of taste; where paragraphs do is not. */
const paragraphsOf = (text: string | null) =>
  (text ?? '')
    .split(/\n{2,}/)
    .map((paragraph) => paragraph.trim().replaceAll(/\s+/g, ' '))
    .filter((paragraph) => paragraph !== '');

test.each(slugs)('of %s in the gallery it makes the paragraphs that html-to-text makes', (slug) => {
  const html = readFileSync(new URL(`${slug}/template.html`, gallery), 'utf8');
  expect(paragraphsOf(makeTextPart(html))).toEqual(paragraphsOf(oracle(html).trim()));
});
