import fc from 'fast-check';
import { Parser } from 'htmlparser2';
import { describe, expect, it, test } from 'vitest';
import { compileText, fillOnce, fillText, type Values } from './placeholders.ts';
import { parseUrl } from '../platform/url.ts';

function fill(text: string, values: Values, form: 'html' | 'text' | 'url' = 'html'): string {
  return fillText(compileText(text, form), values, Infinity) ?? '';
}

/** What each element's attributes say to a parser that knows nothing of templates. */
function attributesOf(html: string): Record<string, string>[] {
  const found: Record<string, string>[] = [];
  const parser = new Parser({
    onopentag: (_name, attributes) => found.push(attributes),
    oncomment: (comment) => found.push(...attributesOf(comment.replace(/^\[if[^\]]*\]>/, ''))),
  });
  parser.end(html);
  return found;
}

const anyValue = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 20 }),
  fc.constantFrom(
    'a&b=c',
    '//evil.example',
    '@evil.example',
    ':80',
    '?a=b#c',
    '../..',
    '"><script>',
    "' x='",
    '%41%',
  ),
  fc.constantFrom(
    'javascript:alert(1)',
    ' \tjava\nscript:x',
    'JaVaScRiPt:x',
    'java&#115;cript:x',
    '&#106;avascript:x',
  ),
);

const quoted = (url: string) => [`<a href="${url}">x</a>`, `<a href='${url}'>x</a>`, `<img src=${url}>`];

describe('a value in a query', () => {
  const places = [
    ...quoted('https://a.example/p?q={{v}}&amp;z=1'),
    '<!--[if mso]><v:rect href="https://a.example/p?q={{v}}&amp;z=1"><![endif]-->',
    '<form action="https://a.example/p?q={{v}}&z=1">',
  ];
  it.each(places)('of %s is one parameter, which is the value', (html) => {
    fc.assert(
      fc.property(anyValue, (v) => {
        const [attributes = {}] = attributesOf(fill(html, { v }));
        const url = new URL(attributes.href ?? attributes.src ?? attributes.action ?? '');
        expect([...url.searchParams]).toEqual([
          ['q', v.toWellFormed()],
          ['z', '1'],
        ]);
        expect(url.href).toMatch(/^https:\/\/a\.example\/p\?/);
        expect(Object.keys(attributes)).toHaveLength(1);
      }),
    );
  });

  it('of a fragment is the fragment', () => {
    fc.assert(
      fc.property(anyValue, (v) => {
        const [{ href = '' } = {}] = attributesOf(fill('<a href="https://a.example/#{{v}}">', { v }));
        expect(decodeURIComponent(new URL(href).hash)).toBe(v === '' ? '' : `#${v.toWellFormed()}`);
      }),
    );
  });

  it('of a link in text is the same, and the words around it are literal', () => {
    const text = '{{v}} (https://a.example/p?q={{v}}) {{v}}';
    fc.assert(
      fc.property(anyValue, (v) => {
        const filled = fill(text, { v }, 'text');
        const encoded = filled.slice(v.length, filled.length - v.length);
        const [, url = ''] = /^ \((\S*)\) $/.exec(encoded) ?? [];
        expect([...new URL(url).searchParams]).toEqual([['q', v.toWellFormed()]]);
        expect(filled.startsWith(v) && filled.endsWith(v)).toBe(true);
      }),
    );
  });
});

test.each([
  ...quoted('https://a.example/x/{{v}}/y?z=1'),
  ...quoted('https://a.example/{{v}}'),
  ...quoted('HTTPS://a.example\\{{v}}'),
])('whatever the value in the path of %s, host and query are those of the author', (html) => {
  const authored = new URL(
    attributesOf(html.replace('{{v}}', 'v'))[0]?.href ?? attributesOf(html)[0]?.src ?? '',
  );
  fc.assert(
    fc.property(anyValue, (v) => {
      const [attributes = {}] = attributesOf(fill(html, { v }));
      const url = new URL(attributes.href ?? attributes.src ?? '');
      expect([url.origin, url.username, url.search, url.hash]).toEqual([
        authored.origin,
        '',
        authored.search,
        '',
      ]);
      expect(Object.keys(attributes)).toHaveLength(1);
    }),
  );
});

test.each([
  ...quoted('{{v}}'),
  ...quoted('{{v}}{{v}}'),
  ...quoted('{{v}}:{{v}}'),
  ...quoted('java{{v}}:alert(1)'),
  ...quoted('{{v}}/x?y={{v}}'),
  '<a href="&#9; {{v}}">',
  '<a href=" {{ v }}\n">',
  '<a href="x" title={{v}}>',
  '<img srcset="{{v}} 1x, {{v}} 2x">',
])('no value makes %s run code, or adds an attribute', (html) => {
  const names = Object.keys(attributesOf(html.replaceAll(/\{\{ ?v ?\}\}/g, 'v'))[0] ?? {});
  fc.assert(
    fc.property(anyValue, (v) => {
      const [attributes = {}] = attributesOf(fill(html, { v }));
      expect(Object.keys(attributes)).toEqual(names);
      for (const url of [attributes.href, attributes.src, attributes.srcset]) {
        const parsed = url === undefined ? null : parseUrl(url);
        if (parsed === null) continue;
        expect(parsed.protocol).toMatch(
          /^(?:https?|mailto|tel|cid|java|javahttps?|javamailto|javatel|javas):$/,
        );
      }
    }),
    { numRuns: 500 },
  );
});

test.each([
  ['<a href="{{v}}">', 'https://a.example/ä?b=c&d#e', '<a href="https://a.example/ä?b=c&amp;d#e">'],
  ['<a href="{{v}}">', 'mailto:a@b.example', '<a href="mailto:a@b.example">'],
  ['<a href="{{v}}">', 'tel:+49123', '<a href="tel:+49123">'],
  ['<a href="{{v}}">', ' \thttps://a.example/\n', '<a href="https://a.example/">'],
  ['<img src="{{v}}">', 'cid:logo', '<img src="cid:logo">'],
  ['<a href="{{v}}">', '\x01 java\tscript:x', '<a href="">'],
  ['<a href="{{v}}">', 'data:text/html,x', '<a href="">'],
  ['<a href={{v}} id=a>', '', '<a href="" id=a>'],
  ['<a href="{{v}}/x">', 'javascript:x//', '<a href="#/x">'],
  [
    '<a href="{{v}}/x?y={{v}}">',
    'https://a.example',
    '<a href="https://a.example/x?y=https%3A%2F%2Fa.example">',
  ],
  ['<a href="https://b.example/?u={{{v}}}">', 'a&b', '<a href="https://b.example/?u=a&b">'],
  ['<a href="{{{v}}}">', 'javascript:x', '<a href="javascript:x">'],
  ['<a href="https://a.example/{{v}}">', 'a%20b/ü%?', '<a href="https://a.example/a%20b/%C3%BC%25%3F">'],
  ['<a href="{{v}}&t=12:30">', 'https://a.example/?q=1', '<a href="https://a.example/?q=1&t=12:30">'],
  ['<p>{{v}}&lastname={{v}}: hi</p>', 'a b', '<p>a b&lastname=a%20b: hi</p>'],
  ['<a href="https://a.example{{v}}">', '/b c', '<a href="https://a.example/b%20c">'],
  ['<a href="https://a.example{{v}}">', '@b', '<a href="https://a.example%40b">'],
  ['<a href="https://{{v}}.a.example/">', 'b.example/', '<a href="https://b.example%2F.a.example/">'],
  [
    '<a href="mailto:{{v}}?subject={{v}}">',
    'a@b.example',
    '<a href="mailto:a@b.example?subject=a%40b.example">',
  ],
  ['<a href="/{{v}}">', '/b.example', '<a href="/%2Fb.example">'],
  ['<p title="Really?q={{v}}">{{v}}</p>', 'a b', '<p title="Really?q=a b">a b</p>'],
  ['<p>https://a.example/?b=1&amp;q={{v}}</p>', 'a b', '<p>https://a.example/?b=1&amp;q=a%20b</p>'],
  [
    '<script>"{{v}}"</script><style>{{v}}</style>{{v}}',
    '<',
    '<script>"&lt;"</script><style>&lt;</style>&lt;',
  ],
])('%s with %j is %s', (html, v, expected) => {
  expect(fill(html, { v })).toBe(expected);
  expect(fillOnce(html, { v }, 'html', 10_000).text).toBe(expected);
});

test.each([
  ['See https://a.example/?q={{v}}.', 'a b', 'See https://a.example/?q=a%20b.'],
  ['{{v}}?code={{v}}', 'a b', 'a b?code=a%20b'],
  ['How are you, {{v}}?{{v}} and/or {{v}}/{{v}}', 'a b', 'How are you, a b?a b and/or a b/a b'],
  ['(https://a.example/{{v}}),{{v}}', 'a b', '(https://a.example/a%20b),a b'],
  ['{{v}}', 'javascript:x', 'javascript:x'],
  ['https://a.example/\n{{v}}', 'a b', 'https://a.example/\na b'],
])('the text %j with %j is %j', (text, v, expected) => {
  expect(fill(text, { v }, 'text')).toBe(expected);
});

test('the places of a text are those of its own placeholders, whatever characters it holds', () => {
  // What stands for a placeholder while the places are read, as it is and as a character reference.
  expect(fill('\x9f<a title="\x9f&#x9f;" href="https://a.example/?q={{v}}">{{v}}', { v: 'a b' })).toBe(
    '\x9f<a title="\x9f&#x9f;" href="https://a.example/?q=a%20b">a b',
  );
  expect(fill('<!-- {{v}} --><i {{v}}>{{v}}<a href="https://a.example/?q={{v}}">', { v: 'a b' })).toBe(
    '<!-- a b --><i a b>a b<a href="https://a.example/?q=a%20b">',
  );
});

describe('HTML of which only pieces are read', () => {
  const piece = fc.constantFrom(
    ...[
      '{{v}}',
      '{{v}}',
      '{{v}}',
      '<a href="',
      '<a href=',
      "<img src='",
      '<p title="',
      '<td width=600>',
      '<br/>',
    ],
    ...[
      '</p>',
      '</p x="',
      '<a b="1" c>',
      '<',
      '/',
      '>',
      '"',
      "'",
      '=',
      ' ',
      '\n',
      'a',
      ' class=x',
      ' href="',
      ',',
    ],
    ...[
      ' srcset="',
      'https://a.example/?q=',
      'https://',
      '?b=',
      '&amp;',
      '&#61;',
      '&#x9f;',
      '&',
      '\x9f',
      ':',
      '(',
    ],
    ...[
      '<!--',
      '-->',
      '--!>',
      '<!-->',
      '<!--[if mso]>',
      '<![endif]-->',
      '<!doctype html>',
      '<!x',
      '<![CDATA[',
      ']]>',
    ],
    ...[
      '<style>',
      '</style>',
      '</style x>',
      '<title>',
      '</title >',
      '<script>',
      '</script>',
      '<textarea a="b">',
    ],
    ...[
      '</textarea>',
      '<plaintext>',
      '<xmp',
      '<TITLE',
      '<svg>',
      '<?x',
      '<a/href="',
      '<a ="',
      ' b ="',
      '<a b=c"d>',
    ],
  );
  it('has the places that it has where all of it is read', () => {
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 30 }), (pieces) => {
        const html = pieces.join('');
        // An empty comment says nothing, and is not among the pieces that are known: from there on all is read.
        const whole = compileText(`<!---->${html}`, 'html').placeholders;
        expect(compileText(html, 'html').placeholders).toEqual(whole);
      }),
      { numRuns: 20_000 },
    );
  });

  it.each('script style title textarea iframe noembed noframes plaintext xmp'.split(' '))(
    'has no markup in %s',
    (tag) => {
      expect(fill(`<${tag}><a title={{v}}></${tag}>`, { v: 'a b' })).toBe(`<${tag}><a title=a b></${tag}>`);
    },
  );

  it('may have a tag of any length', () => {
    const html = `<p ${'a="b" '.repeat(200_000)}title={{v}}>{{v}}`;
    expect(fill(html, { v: 'a b' })).toMatch(/title=a&#32;b>a b$/);
  });
});

test.each([
  '<a href="https://a.example/?{{v}}',
  '<a href={{v}}',
  '<img srcset="{{v}},',
  '<a href="{{v}}>',
  '<style>url({{v}}',
  '<!--[if mso]>{{v}}',
  '<!--[if mso]><a href="{{v}}"><![endif]-->',
  'https://{{v}}',
  '{{v}}',
  '({{v}}?a=',
  '{{v}}&',
  '<a href=\'"{{v}}',
  '&amp;{{v}}',
  '/\\{{v}}',
  ':{{v}}?',
])('a megabyte of %s is read in one go', (snippet) => {
  // What grows with the square of the length would outlast the test.
  const text = snippet.repeat(1_048_576 / snippet.length);
  for (const form of ['html', 'text', 'url'] as const) expect(fill(text, {}, form)).toBe(text);
});

test.each(['\t', ' ', '\0', 'a:', '%', 'ü', '&', '//', '\ud800'])(
  'a value of a megabyte of %j is written in one go',
  (unit) => {
    const v = unit.repeat(1_048_576 / unit.length) + 'x';
    for (const html of ['<a href="{{v}}">', '<a href="https://a/{{v}}?q={{v}}">', '<a href={{v}}>'])
      expect(fill(html, { v })).toMatch(/^<a href=.*>$/);
  },
);
