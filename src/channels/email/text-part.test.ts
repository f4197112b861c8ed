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
])('it keeps %s as people read them', (_what, html, text) => {
  expect(makeTextPart(html)).toBe(text);
});

test.each([
  ['nothing but markup', '<p><br></p>'],
  ['more than is looked at', `<p>${'x'.repeat(262_144)}</p>`],
  ['a deep nest', '<div>'.repeat(52_000)],
  ['a deep nest of what is closed by itself', '<b>'.repeat(80_000)],
  ['tables in tables', '<table><tr><td>'.repeat(17_000)],
  ['lists in lists', `${'<ol start="999999999"><li>'.repeat(99)}${'<br>x'.repeat(51_000)}`],
  [
    'what makes many times as much text',
    `${'<ol start="999999999"><li>'.repeat(10)}${'<br>x'.repeat(51_000)}`,
  ],
  ['numbers that cannot be written', '<ol type="i" start="3999999"><li>x</ol>'],
  ['headings that are never closed', '<h1>x'.repeat(52_000)],
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
])('hostile %s come to an end', (_what, html) => {
  expect(() => makeTextPart(html)).not.toThrow();
});
