import { expect, test } from 'vitest';
import { renderLayout } from './layout.ts';
import { parseMarkup } from './markup.ts';

const colors = `
  <color name="paper" light="#ffffff" dark="#000000" />
  <color name="ink" light="#111111" dark="#eeeeee" />
  <color name="muted" light="#222222" dark="#dddddd" />`;

function render(body: string, head = ''): string {
  const markup = `<email lang="en" font="sans" background="paper" color="ink" link="ink"><head>${colors}${head}</head>${body}</email>`;
  return renderLayout(parseMarkup(markup), 'Say "hello"');
}

test.each([
  ['an element', '<blink>x</blink>', '<blink> is not known'],
  ['a colour', '<text color="red">x</text>', 'the colour "red" is not known'],
  ['a look', '<text is="lead">x</text>', 'the look "lead" is not known'],
  ['a font', '<text font="comic">x</text>', 'the font "comic" is not known'],
  ['a shape', '<mosaic>paper:star:ink</mosaic>', 'the shape "star" is not known'],
  ['a kind of footer', '<footer kind="other">x</footer>', 'there is no footer of the kind "other"'],
  ['an element in a text', '<text><script>x</script></text>', '<script> stands in a text'],
])('%s that does not exist is refused by its name', (_what, body, message) => {
  expect(() => render(body)).toThrow(message);
});

test.each([
  ['an element that stays open', '<section><text>x</section>', '<text> is not closed'],
  ['an attribute that is missing', '<button>x</button>', 'the attribute "href" is missing'],
  ['text between blocks', '<section>lost</section>', 'text stands in <section>: "lost"'],
  ['a mosaic with a short row', '<mosaic>\nink ink\nink\n</mosaic>', 'the rows of a mosaic differ in length'],
])('%s is refused', (_what, body, message) => {
  expect(() => render(body)).toThrow(message);
});

test('a colour is inline in light mode, and a class in dark mode and for Outlook.com', () => {
  const html = render('<section background="muted"><text>x</text></section>');
  expect(html).toContain('class="fill-muted" style="background-color:#222222"');
  expect(html).toContain('\n.fill-muted{background-color:#dddddd!important}');
  expect(html).toContain('[data-ogsb] .fill-muted{background-color:#dddddd!important}');
  expect(html).toContain('[data-ogsc] .text-ink{color:#eeeeee!important}');
  expect(html).not.toContain('.text-muted');
});

test('a block can overrule what its look says', () => {
  const html = render('<text is="lead" size="20">x</text>', '<look name="lead" size="30" weight="700" />');
  expect(html).toContain('font-size:20px;line-height:1.6;font-weight:700');
});

test('quotation marks of a subject do not end an attribute', () => {
  const html = render('<text>x</text>');
  expect(html).toContain('aria-label="Say &quot;hello&quot;"');
  expect(html).toContain('<title>Say "hello"</title>');
});

test('a campaign offers a way out, and a letter of an account help', () => {
  expect(render('<footer kind="campaign">x</footer>')).toContain('href="{{unsubscribe_url}}"');
  const service = render('<footer kind="service">x</footer>');
  expect(service).toContain('href="{{support_url}}"');
  expect(service).not.toContain('unsubscribe');
});
