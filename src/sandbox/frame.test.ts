import fc from 'fast-check';
import { expect, test } from 'vitest';
import { noAddresses } from './addresses.ts';
import { buildFrame } from './frame.ts';

const logo = {
  filename: 'logo.png',
  contentType: 'image/png',
  content: new Uint8Array([1, 2, 3]),
  contentId: 'logo@postillion.test',
};
const dataUrl = 'data:image/png;base64,AQID';
const trap = '\n<base target="_blank">';

const frameOf = (html: string, attachments = [logo]) =>
  buildFrame({
    from: null,
    subject: null,
    addresses: noAddresses,
    headers: [],
    text: null,
    html,
    attachments,
  });

test.each([
  ['<img src="cid:logo@postillion.test" alt=x>', `<img src="${dataUrl}" alt=x>`],
  ["<IMG SRC = 'CID:logo@postillion.test'>", `<IMG SRC="${dataUrl}">`],
  ['<img src=cid:logo@postillion.test>', `<img src="${dataUrl}">`],
  ['<img src=cid:logo@postillion.test alt=x>', `<img src="${dataUrl}" alt=x>`],
  ['<img src="cid:logo%40postillion.test">', `<img src="${dataUrl}">`],
  ['<img src="cid:logo&#64;postillion.test">', `<img src="${dataUrl}">`],
  ['<td background="cid:logo@postillion.test">', `<td background="${dataUrl}">`],
])('the message shows the picture that it brings along: %s', (html, shown) => {
  expect(frameOf(html)).toBe(shown + trap);
});

test.each([
  '<p>src="cid:logo@postillion.test"</p>',
  '<!-- <img src="cid:logo@postillion.test"> -->',
  '<style>.a { content: \'<img src="cid:logo@postillion.test">\' }</style>',
  '<a href="cid:logo@postillion.test">x</a>',
  '<img src="cid:other@postillion.test">',
  '<img src="cid:%E0%A4%A">',
  '<img data-src="cid:logo@postillion.test">',
])('nothing else is touched: %s', (html) => {
  expect(frameOf(html)).toBe(html + trap);
});

test.each([
  ['<link rel=preconnect href=//x>', '<x-link rel=preconnect href=//x>'],
  ['<LINK/rel=preconnect>', '<x-LINK/rel=preconnect>'],
  ['<iframe src=//x></iframe>', '<x-iframe src=//x></iframe>'],
  ['<frameset><frame\tsrc=//x>', '<frameset><x-frame\tsrc=//x>'],
  ['<svg><style><p><link\n', '<svg><style><p><x-link\n'],
  ['<linked>&lt;link ', '<linked>&lt;link '],
])('no element that opens connections stays one: %s', (html, shown) => {
  expect(frameOf(html)).toBe(shown + trap);
});

test('what calls itself a picture, and would be more than that, is not put in', () => {
  const html = '<img src="cid:logo@postillion.test">';
  expect(frameOf(html, [{ ...logo, contentType: 'text/html' }])).toBe(html + trap);
  expect(frameOf(html, [{ ...logo, contentType: 'image/png"><script>' }])).toBe(html + trap);
});

test('a picture that is referred to a thousand times makes no page of a gigabyte', () => {
  const large = { ...logo, content: new Uint8Array(1_048_576) };
  const frame = frameOf('<img src="cid:logo@postillion.test">'.repeat(1_000), [large]);
  expect(frame.length).toBeLessThan(22 * 1_048_576);
  expect(frame.match(/data:/g)?.length).toBeGreaterThan(10);
});

test('HTML that refers to no picture of the message comes out as it went in', () => {
  const piece = fc.oneof(
    fc.string({ maxLength: 20 }),
    fc.constantFrom(
      '<img src="',
      '<!--',
      '-->',
      '<script>',
      '</script>',
      '">',
      "'",
      '&#64;',
      '<svg><![CDATA[',
      '<',
    ),
  );
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 20 }), (pieces) => {
      const html = pieces.join('');
      expect(frameOf(html)).toBe(html + trap);
    }),
  );
});

test('a megabyte of open tags takes no more than its length', () => {
  const html = '<div a=">'.repeat(120_000);
  expect(frameOf(html)).toBe(html + trap);
});
