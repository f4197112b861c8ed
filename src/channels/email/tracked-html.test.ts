import fc from 'fast-check';
import { Parser } from 'htmlparser2';
import { describe, expect, it, test } from 'vitest';
import { compileText, fillText } from '../placeholders.ts';
import { listLinks, listLinkTexts, readWebAddress, trackHtml } from './tracked-html.ts';

const both = { opens: true, clicks: true };
const clicks = { opens: false, clicks: true };
const click = (number: number) => `"{{_postillion.click}}/${number}"`;
const image = /<img src="\{\{_postillion\.open\}\}" [^>]*>/;

test.each([
  ['<a href="https://a.example/x">', ['https://a.example/x']],
  ["<a href='http://a.example'>", ['http://a.example']],
  ['<a href=https://a.example/x>', ['https://a.example/x']],
  ['<A\n HREF =\t"HTTPS://A.example/">', ['HTTPS://A.example/']],
  ['<area shape="rect" href="https://a.example">', ['https://a.example']],
  ['<a href="https://a.example/?a=1&amp;b=2&copy;">', ['https://a.example/?a=1&b=2©']],
  ['<a href="&#104;ttps&colon;//a.example">', ['https://a.example']],
  ['<a href=" \n https://a.exa\nmple/ ">', ['https://a.example/']],
  ['<a class="x"href="https://a.example"id=y>', ['https://a.example']],
  ['<a href="https://a.example/{{name}}?q={{{q}}}">', ['https://a.example/{{name}}?q={{{q}}}']],
  ['<a href="{{cta_url}}">', ['{{cta_url}}']],
  ['<a href={{{cta_url}}}>', ['{{{cta_url}}}']],
])('%s is followed through us', (html, targets) => {
  expect(listLinks(html)).toEqual(targets);
  const tracked = trackHtml(html, clicks);
  expect(readHrefs(tracked)).toEqual(targets.map((_target, number) => `{{_postillion.click}}/${number}`));
});

test.each([
  ...[
    'mailto:a@b.example',
    'tel:+1',
    'sms:+1',
    '#top',
    'cid:a',
    'data:text/html,x',
    '',
    '/path',
    '//a.example',
  ],
  ...[
    'javascript:alert(1)',
    ' javascript:https://a.example',
    'ftp://a.example',
    'https:a.example',
    'httpss://a',
  ],
  ...['{{unsubscribe_url}}', '{{{ unsubscribe_url }}}', 'https://a.example/?u={{unsubscribe_url}}'],
  // Where these lead is not known before they are filled in.
  ...[
    '{{base}}/path',
    '{{a}}{{b}}',
    'https://{{host}}/x',
    'https://a.example{{path}}',
    'http{{s}}://a.example/',
  ],
  ...['{{_postillion.click}}/7', 'https://a.example/{{ broken', `https://a.example/${'x'.repeat(9_000)}`],
])('href="%s" is left as it is', (href) => {
  const html = `<p><a href="${href}">x</a></p>`;
  expect(listLinks(html)).toEqual([]);
  expect(trackHtml(html, clicks)).toBe(html);
});

test.each([
  '<!-- <a href="https://a.example"> -->',
  '<!--[if mso]><a href="https://a.example"><![endif]-->',
  '<style>a { content: \'<a href="https://a.example">\' }</style>',
  '<script>"<a href=\'https://a.example\'>"</script>',
  '<textarea><a href="https://a.example"></textarea>',
  '<link href="https://a.example"><base href="https://a.example"><img src="https://a.example">',
  '<a title=\'<a href="https://a.example">\'>',
  '<abbr href="https://a.example">',
  '&lt;a href="https://a.example"&gt;',
  '<a href={{ cta_url }}>',
])('%s holds no link', (html) => {
  expect(listLinks(html)).toEqual([]);
  expect(trackHtml(html, clicks)).toBe(html);
});

test('of several href of one tag the first counts', () => {
  const html =
    '<a href="#" href="https://a.example">x</a><a href="https://b.example" HREF="https://c.example">';
  expect(listLinks(html)).toEqual(['https://b.example']);
  expect(trackHtml(html, clicks)).toContain(`<a href=${click(0)} HREF="https://c.example">`);
});

test('links are numbered in the order of the document, each by itself', () => {
  const html = '<a href="https://a.example">1</a> <a href="mailto:x">-</a> <a href=https://a.example>2</a>';
  expect(trackHtml(html, clicks)).toBe(
    `<a href=${click(0)}>1</a> <a href="mailto:x">-</a> <a href=${click(1)}>2</a>`,
  );
});

test.each([
  '<a href="https://a.example/x">www.a.com</a>',
  '<a href="https://a.example/x"> <b>www.<span style="color:red">a</span>.com</b>\n</a>',
  '<a href="https://a.example/x">https://a.example/x?a=1&amp;b=2</a>',
  '<a href="https://a.example/x">ann&#64;a.com</a>',
  '<a href="https://a.example/x">a&shy;bc.<wbr>com</a>',
  '<a href="https://a.example/x"><!-- x y -->a.com</a>',
  '<A HREF="https://a.example/x">a.com</A >',
  '<a href="https://a.example/{{code}}">https://a.example/{{code}}</a>',
  '<a href="https://a.example/x">{{name}}@a.com</a>',
  '<a href="https://a.example/x">{{shop}}.a.com/{{{code}}}</a>',
  '<a href="{{shop_url}}"> {{shop_url}} </a>',
  '<a href="https://a.example/x">a.com',
  '<a href="https://a.example/x">a.com<a href="mailto:x">more</a>',
])('%s shows an address, and is left as it is', (html) => {
  expect(listLinkTexts(html).map(({ isLeftAlone }) => isLeftAlone)).toEqual([true]);
  expect(trackHtml(html, clicks)).toBe(html);
});

test.each([
  '<a href="https://a.example/x">Shop</a> www.a.com',
  '<a href="https://a.example/x"></a>www.a.com',
  '<a href="https://a.example/x">See www.a.com</a>',
  '<a href="https://a.example/x"><img src="cid:a" alt="www.a.com"></a>',
  '<a href="https://a.example/x">{{shop}}</a>',
  '<a href="{{shop_url}}">{{site}}</a>',
  '<a href="https://a.example/{{shop}}">{{shop}}</a>',
  '<a href="https://a.example/x">{{order.id}}</a>',
  '<a href="mailto:x">www.a.com<a href="https://a.example/x">Shop</a></a>',
  `<a href="https://a.example/x">a.com/${'x'.repeat(9_000)}</a>`,
  '<map><area href="https://a.example/x">www.a.com</map>',
])('%s shows no address, and is tracked', (html) => {
  expect(listLinkTexts(html).map(({ isLeftAlone }) => isLeftAlone)).toEqual([false]);
  expect(trackHtml(html, clicks)).toContain(`href=${click(0)}`);
});

test('an area within a link does not end its text', () => {
  const html = '<a href="https://a.example/1"><area href="https://a.example/2">a.com</a>';
  expect(trackHtml(html, clicks)).toBe(html.replace('"https://a.example/2"', click(1)));
});

test('a link that is left alone keeps its number, so that links that were sent lead where they did', () => {
  const html =
    '<a href="https://a.example/1">1</a><a href="https://a.example/2">a.com</a><a href="https://a.example/3">3</a>';
  expect(trackHtml(html, clicks)).toBe(
    `<a href=${click(0)}>1</a><a href="https://a.example/2">a.com</a><a href=${click(2)}>3</a>`,
  );
  expect(listLinks(html)).toEqual(['https://a.example/1', 'https://a.example/2', 'https://a.example/3']);
});

describe('the image that reports an open', () => {
  test.each([
    ['<body><p>x</p></body></html>', /^<body><p>x<\/p><img [^>]+><\/body><\/html>$/],
    ['<p>x', /^<p>x<img [^>]+>$/],
    ['', /^<img [^>]+>$/],
    ['a</body>b</BODY >c', /^a<\/body>b<img [^>]+><\/BODY >c$/],
    ['a</body><!-- </body> -->', /^a<img [^>]+><\/body><!-- <\/body> -->$/],
    [
      '<body></body><a href="https://a.example">late</a>',
      /^<body><img [^>]+><\/body><a href="\{\{_postillion.click\}\}\/0">late<\/a>$/,
    ],
  ])('stands before the last </body> of %s, or at the end', (html, expected) => {
    const tracked = trackHtml(html, both);
    expect(tracked).toMatch(expected);
    expect(tracked.match(new RegExp(image, 'g'))).toHaveLength(1);
  });

  it('is there only where it is wanted', () => {
    const html = '<body><a href="https://a.example">x</a></body>';
    expect(trackHtml(html, { opens: true, clicks: false })).toMatch(
      /^<body><a href="https:\/\/a\.example">x<\/a><img [^>]+><\/body>$/,
    );
    expect(trackHtml(html, { opens: false, clicks: false })).toBe(html);
  });
});

const snippets = fc.constantFrom(
  ...['<a href="', '<a href=', "<area href='", '">', "'>", '>', ' ', '<', '</', '/', '&amp;', '&#123;', '&'],
  ...[
    'https://a.example/',
    'http://b.example?q=',
    'mailto:x',
    '{{name}}',
    '{{cta_url}}',
    '{{',
    '}}',
    '{{{x}}}',
  ],
  ...[
    '<!--',
    '-->',
    '<style>',
    '</style>',
    '<title>',
    '</body>',
    '<body>',
    '<svg>',
    'ü😀',
    '\n',
    '\0',
    '<![CDATA[',
  ],
  ...['{{unsubscribe_url}}', 'href=', '"', "'", '=', 'a', '</a>', 'b.com', '<b>'],
);
const anyHtml = fc
  .array(fc.oneof(snippets, fc.string({ maxLength: 8, unit: 'binary' })), { maxLength: 40 })
  .map((parts) => parts.join(''));

test.each([
  `<a href=http://b.example?q=<area href='`,
  '<a href="https://b.example/" ',
  '<a href=https://b.example/',
])('a tag that never ends is no link: %s', (html) => {
  expect(listLinks(html)).toEqual([]);
  expect(trackHtml(html, clicks)).toBe(html);
});

test('the links of any HTML are those that its tracked form is numbered by', () => {
  fc.assert(
    fc.property(anyHtml, (html) => {
      const targets = listLinks(html);
      const numbers = [...trackHtml(html, clicks).matchAll(/"\{\{_postillion\.click\}\}\/(\d+)"/g)].map(
        ([, number]) => Number(number),
      );
      const texts = listLinkTexts(html);
      const expected = [...texts.keys()].filter((number) => texts[number]?.isLeftAlone === false);
      expect(texts).toHaveLength(targets.length);
      expect(numbers).toEqual(expected);
      const tracked = trackHtml(html, both);
      expect(readHrefs(tracked).filter((href) => href.startsWith('{{_postillion.click}}'))).toHaveLength(
        expected.length,
      );
      expect(tracked.match(new RegExp(image, 'g'))).toHaveLength(1);
    }),
    { numRuns: 2_000 },
  );
});

test('whatever values fill a target, it leads to the server that its author named, or was a placeholder alone', () => {
  fc.assert(
    fc.property(anyHtml, fc.string({ unit: 'binary', maxLength: 30 }), (html, value) => {
      for (const target of listLinks(html)) {
        const compiled = compileText(target, 'url');
        const [first = ''] = compiled.literals;
        const values = { name: value, cta_url: value, x: value };
        const address = readWebAddress(fillText(compiled, values, Infinity) ?? '');
        if (address === null || first === '') continue;
        expect(new URL(address).origin).toBe(new URL(first).origin);
      }
    }),
    { numRuns: 1_000 },
  );
});

test.each([
  '<a href="https://a.example/',
  '<a href=',
  '<a ',
  '<a href="{{',
  '{{',
  '<!--',
  '&#',
  '&ampamp',
  '<a href="&',
  '</body',
  '</body>',
  '<a href\n',
  '<a href=\n',
  '<a href="\n',
  '<title>&',
  '<a href="https://a.example/"',
  '<a href="https://a.example/">→',
  '<a href="https://a.example/">a.com/',
  '<a href="https://a.example/">{{',
  '"',
])('a megabyte of %s is read in one go', (snippet) => {
  // What grows with the square of the length would outlast the test.
  const html = snippet.repeat(1_048_576 / snippet.length);
  expect(trackHtml(html, both)).toMatch(image);
});

test('HTML that is too long to be read at every click is not tracked', () => {
  const html = `<a href="https://a.example">${'x'.repeat(2 * 1_048_576)}</a>`;
  expect(listLinks(html)).toEqual([]);
  expect(trackHtml(html, both)).toBe(html);
});

test.each([
  ['https://a.example/ü?q=a b#ö', 'https://a.example/%C3%BC?q=a%20b#%C3%B6'],
  ['http://bücher.example', 'http://xn--bcher-kva.example/'],
  ['https://a.example/\r\nset-cookie: x=1', 'https://a.example/set-cookie:%20x=1'],
  ['https:a.example', 'https://a.example/'],
  ['javascript:alert(1)', null],
  ['data:text/html,x', null],
  ['//a.example', null],
  ['/path', null],
  ['{{cta_url}}', null],
  ['', null],
  ['https://', null],
  [`https://a.example/${'x'.repeat(20_000)}`, null],
])('%j is passed on to as %j', (text, address) => {
  expect(readWebAddress(text)).toBe(address);
});

/** The first href of each link, as a parser of another kind sees them. */
function readHrefs(html: string): string[] {
  const hrefs: string[] = [];
  const parser = new Parser({
    onopentag: (name, attributes) => {
      if ((name === 'a' || name === 'area') && attributes.href !== undefined) hrefs.push(attributes.href);
    },
  });
  parser.end(html);
  return hrefs;
}
