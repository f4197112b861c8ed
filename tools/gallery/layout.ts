/**
 * Turns the markup of a gallery template into HTML that mail clients agree on: tables for layout, every style inline,
 * no images. Colours are named once, with a light and a dark value: the light one goes inline, the dark one into
 * classes for `prefers-color-scheme` and for Outlook.com, which marks what it darkens with `data-ogsc` (text) and
 * `data-ogsb` (backgrounds). Classic Outlook for Windows knows none of this, and sees squares where others see round
 * corners; it renders with Word, whence the `mso-` properties.
 *
 * docs/gallery.md describes the elements and their attributes.
 */
import { listElements, type MarkupElement } from './markup.ts';

/** Of the letter. Wider ones are cut off in the reading panes of desktop clients. */
const widthPx = 600;

/** Below it columns are stacked, paddings shrink and headings get smaller. */
const narrowPx = 480;

/** A text without an attribute `gap` keeps this distance from what follows it. */
const gapPxDefault = 16;

/** Smaller headings need no smaller size on phones. */
const headingPxOnPhones = 28;

const fonts: Readonly<Record<string, string>> = {
  sans: `-apple-system,BlinkMacSystemFont,'Segoe UI',Roboto,Helvetica,Arial,sans-serif`,
  geometric: `'Avenir Next',Avenir,'Century Gothic','Segoe UI',Helvetica,Arial,sans-serif`,
  serif: `Georgia,'Times New Roman',Times,serif`,
  book: `'Iowan Old Style','Palatino Linotype',Palatino,'Book Antiqua',Georgia,serif`,
  mono: `ui-monospace,SFMono-Regular,Menlo,Consolas,'Courier New',monospace`,
};

/**
 * Of what holds no text, so that a line in it makes it no higher. Not a font of no size: spam filters take it for a way
 * to hide words from readers.
 */
const flat = 'line-height:1px;mso-line-height-rule:exactly';

/** Ends the floating of a table with `align`. */
const clearing = `<div style="clear:both;${flat}"></div>`;

type Attributes = Readonly<Record<string, string>>;
type Color = { light: string; dark: string };
type Paint = 'text' | 'fill' | 'line';

type Layout = {
  colors: ReadonlyMap<string, Color>;
  /** Bundles of attributes that elements take with `is="name"`. */
  looks: ReadonlyMap<string, Attributes>;
  /** The attributes of `<email>`. */
  defaults: Attributes;
  /** Which classes the letter uses: only those get rules. Filled while the body is rendered. */
  used: { paints: Map<string, { paint: Paint; color: string }>; headings: Set<number>; mosaics: Set<number> };
};

/**
 * The HTML of one template. Throws an error that says which element, attribute or colour it does not know; the
 * markup is ours, so that there is nothing to make good.
 */
export function renderLayout(email: MarkupElement, subject: string): string {
  if (email.name !== 'email') throw new Error(`<${email.name}> stands at the top instead of <email>`);
  const [head, ...body] = listElements(email);
  if (head?.name !== 'head') throw new Error('<email> must begin with <head>');
  const layout = readHead(head, email.attributes);
  const content = body.map((element) => renderBlock(layout, element)).join('\n');
  const language = escapeQuotes(readAttribute(email.attributes, 'lang'));
  const paper = paintElement(layout, 'fill', readAttribute(email.attributes, 'background'));
  return `<!doctype html>
<html lang="${language}" dir="ltr" xmlns="http://www.w3.org/1999/xhtml" xmlns:o="urn:schemas-microsoft-com:office:office">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="format-detection" content="telephone=no, date=no, address=no, email=no, url=no">
<meta name="x-apple-disable-message-reformatting">
<meta name="color-scheme" content="light dark">
<meta name="supported-color-schemes" content="light dark">
<title>${subject}</title>
<!--[if mso]>
<xml><o:OfficeDocumentSettings><o:AllowPNG/><o:PixelsPerInch>96</o:PixelsPerInch></o:OfficeDocumentSettings></xml>
<![endif]-->
${renderStyles(layout)}
</head>
<body class="${paper.className}" style="margin:0;padding:0;width:100%;word-break:break-word;-webkit-text-size-adjust:100%;${paper.style}">
<div role="main" lang="${language}">
${openTable(paper, 'width="100%"')}
<tr><td class="page" align="center" style="padding:32px 12px">
<!--[if mso]><table role="presentation" width="${widthPx}" cellpadding="0" cellspacing="0" border="0"><tr><td><![endif]-->
<div role="article" aria-roledescription="email" aria-label="${escapeQuotes(subject)}" style="max-width:${widthPx}px;margin:0 auto;text-align:left">
${content}
</div>
<!--[if mso]></td></tr></table><![endif]-->
</td></tr>
</table>
</div>
</body>
</html>
`;
}

function readHead(head: MarkupElement, defaults: Attributes): Layout {
  const colors = new Map<string, Color>();
  const looks = new Map<string, Attributes>();
  for (const { name: kind, attributes } of listElements(head)) {
    const name = readAttribute(attributes, 'name');
    if (kind === 'color') {
      colors.set(name, {
        light: readAttribute(attributes, 'light'),
        dark: readAttribute(attributes, 'dark'),
      });
    } else if (kind === 'look') {
      const { name: _, ...look } = attributes;
      looks.set(name, look);
    } else {
      throw new Error(`<${kind}> stands in <head>`);
    }
  }
  return { colors, looks, defaults, used: { paints: new Map(), headings: new Set(), mosaics: new Set() } };
}

function renderStyles(layout: Layout): string {
  const { paints, headings, mosaics } = layout.used;
  const properties = { text: 'color', fill: 'background-color', line: 'border-color' } as const;
  const dark = [...paints].map(([className, { paint, color }]) => ({
    className,
    rule: `{${properties[paint]}:${findColor(layout, color).dark}!important}`,
    prefix: paint === 'fill' ? '[data-ogsb]' : '[data-ogsc]',
  }));
  const phones = [
    '.page{padding:16px 8px!important}',
    '.wide{padding-left:24px!important;padding-right:24px!important}',
    '.stack{display:block!important;width:auto!important}',
    '.gutter{display:block!important;width:auto!important;height:20px!important}',
    ...[...headings].map((px) => `.h${px}{font-size:${phoneSize(px)}px!important}`),
  ];
  const tiles = [...mosaics].map((count) => `.m${count}{height:calc((100vw - 16px)/${count})!important}`);
  return [
    renderSheet(onPhones, phones),
    ...(tiles.length === 0 ? [] : [renderSheet(onPhones, tiles)]),
    renderSheet(
      '@media (prefers-color-scheme:dark)',
      dark.map(({ className, rule }) => `.${className}${rule}`),
    ),
    `<style>
:root{color-scheme:light dark;supported-color-schemes:light dark}
${dark.map(({ className, rule, prefix }) => `${prefix} .${className}${rule}`).join('\n')}
</style>`,
  ].join('\n');
}

const onPhones = `@media only screen and (max-width:${narrowPx}px)`;

function renderSheet(condition: string, rules: string[]): string {
  return `<style>\n${condition}{\n${rules.join('\n')}\n}\n</style>`;
}

function phoneSize(px: number): number {
  return Math.max(headingPxOnPhones, Math.round(px * 0.7));
}

const blocks: Readonly<Record<string, (layout: Layout, element: MarkupElement) => string>> = {
  section: renderSection,
  box: renderBox,
  heading: renderHeading,
  text: renderText,
  button: renderButton,
  columns: renderColumns,
  rows: renderRows,
  item: renderItem,
  mark: renderMark,
  code: renderCode,
  divider: renderDivider,
  stripes: renderStripes,
  mosaic: renderMosaic,
  space: (_layout, element) => renderSpace(Number(readAttribute(element.attributes, 'height'))),
  footer: renderFooter,
};

function renderBlock(layout: Layout, element: MarkupElement): string {
  const render = blocks[element.name];
  if (render === undefined) throw new Error(`<${element.name}> is not known`);
  return render(layout, takeLook(layout, element));
}

function takeLook(layout: Layout, element: MarkupElement): MarkupElement {
  const { is, ...attributes } = element.attributes;
  const look = is === undefined ? {} : layout.looks.get(is);
  if (look === undefined) throw new Error(`the look "${is}" is not known`);
  return { ...element, attributes: { ...look, ...attributes } };
}

/** The last block of a container needs no distance from anything, and a text more from a button than from a text. */
function renderBlocks(layout: Layout, elements: MarkupElement[]): string {
  return elements
    .map((plain, index) => {
      const element = takeLook(layout, plain);
      const gap = defaultGap(element, elements[index + 1]);
      const attributes = gap === null ? element.attributes : { gap, ...element.attributes };
      return renderBlock(layout, { ...element, attributes });
    })
    .join('\n');
}

function defaultGap(element: MarkupElement, next: MarkupElement | undefined): string | null {
  if (next === undefined) return '0';
  return element.name === 'text' && next.name === 'button' ? '24' : null;
}

/** A band over the whole width of the letter. */
function renderSection(layout: Layout, element: MarkupElement): string {
  return renderFrame(layout, element, '40 48');
}

/** A card inside a section or a column. */
function renderBox(layout: Layout, element: MarkupElement): string {
  return renderFrame(layout, element, '24') + renderGap(element.attributes);
}

function renderFrame(layout: Layout, element: MarkupElement, paddingDefault: string): string {
  const { background, border, edge, radius, align, padding = paddingDefault } = element.attributes;
  const fill = paintElement(layout, 'fill', background);
  const frame = paintElement(layout, 'line', border ?? edge);
  const style = [
    fill.style,
    border === undefined ? '' : `border:1px solid ${findColor(layout, border).light}`,
    edge === undefined ? '' : `border-left:4px solid ${findColor(layout, edge).light}`,
    radius === undefined ? '' : `border-radius:${toPx(radius)}`,
  ];
  const td = [`padding:${toPx(padding)}`, `text-align:${align ?? 'left'}`];
  const sidePx = Number(padding.split(' ')[1] ?? padding);
  return `${openTable({ className: joinNames(fill.className, frame.className), style: joinStyles(style) }, 'width="100%"')}
<tr><td${classOf(sidePx > 24 ? 'wide' : '')} align="${align ?? 'left'}" style="${joinStyles(td)}">
${renderBlocks(layout, listElements(element))}
</td></tr>
</table>`;
}

function renderHeading(layout: Layout, element: MarkupElement): string {
  const level = element.attributes.level ?? '1';
  const sizes: Readonly<Record<string, string>> = { '1': '32', '2': '24', '3': '18' };
  const size = sizes[level];
  if (size === undefined) throw new Error(`there are no headings of level ${level}`);
  const attributes = { size, weight: '700', line: '1.2', ...element.attributes };
  return renderParagraph(layout, { ...element, attributes }, `h${level}`);
}

function renderText(layout: Layout, element: MarkupElement): string {
  return renderParagraph(layout, element, 'p');
}

function renderParagraph(layout: Layout, element: MarkupElement, tag: string): string {
  const { size, gap = String(gapPxDefault), align } = element.attributes;
  const text = paintElement(layout, 'text', readColor(layout, element.attributes));
  const px = Number(size ?? 16);
  if (px > headingPxOnPhones) layout.used.headings.add(px);
  const names = joinNames(text.className, px > headingPxOnPhones ? `h${px}` : '');
  const margin = `margin:0 0 ${Number(gap)}px`;
  const alignment = align === undefined ? '' : `text-align:${align}`;
  const style = joinStyles([margin, fontStyle(layout, element.attributes), text.style, alignment]);
  const content = renderInline(layout, element);
  // SpamAssassin reads no styles of headings: on a dark ground it takes them for hidden.
  const shown =
    tag === 'p' ? content : `<span${classOf(text.className)} style="${text.style}">${content}</span>`;
  return `<${tag}${classOf(names)} style="${style}">${shown}</${tag}>`;
}

function fontStyle(layout: Layout, attributes: Attributes): string {
  const { font, size = '16', weight = '400', line = '1.6', spacing, italic, caps, strike } = attributes;
  return joinStyles([
    `font-family:${findFont(font ?? readAttribute(layout.defaults, 'font'))}`,
    `font-size:${Number(size)}px`,
    `line-height:${line}`,
    `font-weight:${weight}`,
    spacing === undefined ? '' : `letter-spacing:${spacing}`,
    italic === 'yes' ? 'font-style:italic' : '',
    caps === 'yes' ? 'text-transform:uppercase' : '',
    strike === 'yes' ? 'text-decoration:line-through' : '',
  ]);
}

/** Text with what may stand inside a paragraph, in lines that are short enough for any mail server (RFC 5322, 2.1.1). */
function renderInline(layout: Layout, element: MarkupElement): string {
  const inline = element.children.map((child) =>
    typeof child === 'string' ? child.replace(/\s+/g, ' ') : renderInlineElement(layout, child),
  );
  return inline.join('').trim();
}

function renderInlineElement(layout: Layout, element: MarkupElement): string {
  const { name, attributes } = element;
  const content = renderInline(layout, element);
  if (name === 'br') return '<br>\n';
  if (name === 'b') return `<strong>${content}</strong>`;
  if (name === 'i') return `<em>${content}</em>`;
  if (name === 'span') {
    const text = paintElement(layout, 'text', attributes.color);
    const weight = attributes.weight === undefined ? '' : `font-weight:${attributes.weight}`;
    const size = attributes.size === undefined ? '' : `font-size:${Number(attributes.size)}px`;
    const font = attributes.font === undefined ? '' : `font-family:${findFont(attributes.font)}`;
    const strike = attributes.strike === 'yes' ? 'text-decoration:line-through' : '';
    const style = joinStyles([text.style, weight, size, font, strike]);
    return `<span${classOf(text.className)} style="${style}">${content}</span>`;
  }
  if (name === 'a') {
    const text = paintElement(layout, 'text', attributes.color ?? readAttribute(layout.defaults, 'link'));
    const href = escapeQuotes(readAttribute(attributes, 'href'));
    const style = joinStyles([
      text.style,
      'text-decoration:underline',
      `font-weight:${attributes.weight ?? 'inherit'}`,
    ]);
    return `\n<a href="${href}"${classOf(text.className)} style="${style}">${content}</a>`;
  }
  throw new Error(`<${name}> stands in a text`);
}

/** A table cell with a background, so that Outlook paints it; at least 44 px high, for thumbs. */
function renderButton(layout: Layout, element: MarkupElement): string {
  const { background, border, radius = '8', align = 'left', padding = '14 28', full } = element.attributes;
  const fill = paintElement(layout, 'fill', background);
  const text = paintElement(layout, 'text', readColor(layout, element.attributes));
  const frame = paintElement(layout, 'line', border);
  const font = fontStyle(layout, { weight: '600', line: '1.25', ...element.attributes });
  const cell = joinStyles([
    `border-radius:${toPx(radius)}`,
    border === undefined ? '' : `border:2px solid ${findColor(layout, border).light}`,
    `mso-padding-alt:${toPx(padding)}`,
    'text-align:center',
    fill.style,
  ]);
  const link = joinStyles([
    'display:block',
    `padding:${toPx(padding)}`,
    font,
    'text-decoration:none',
    'text-align:center',
    text.style,
  ]);
  const href = escapeQuotes(readAttribute(element.attributes, 'href'));
  const width = full === 'yes' ? 'width="100%"' : `align="${align}"`;
  const clear = full === 'yes' || align === 'center' ? '' : `\n${clearing}`;
  return `${openTable({ className: '', style: '' }, width)}
<tr><td${classOf(joinNames(fill.className, frame.className))} align="center" style="${cell}">
<a href="${href}"${classOf(joinNames('button', text.className))} style="${link}">${renderInline(layout, element)}</a>
</td></tr>
</table>${clear}${renderGap(element.attributes)}`;
}

/** Cells beside each other, stacked on phones unless `stack="no"`. */
function renderColumns(layout: Layout, element: MarkupElement): string {
  const { stack = 'yes', gutter = '16', valign = 'top' } = element.attributes;
  const columns = listElements(element);
  const isShared = columns.every(({ attributes }) => attributes.width === undefined);
  const cells = columns.map((column) => {
    if (column.name !== 'column') throw new Error(`<${column.name}> stands in <columns>`);
    const { background, radius, width, align = 'left', padding = '0', border } = column.attributes;
    const fill = paintElement(layout, 'fill', background);
    const frame = paintElement(layout, 'line', border);
    const style = joinStyles([
      // Outlook goes by the attribute; others give equal columns what the gutters leave.
      isShared ? 'width:auto' : '',
      `padding:${toPx(padding)}`,
      `text-align:${align}`,
      radius === undefined ? '' : `border-radius:${toPx(radius)}`,
      border === undefined ? '' : `border:1px solid ${findColor(layout, border).light}`,
      fill.style,
    ]);
    const names = joinNames(stack === 'yes' ? 'stack' : '', fill.className, frame.className);
    const share = width ?? (isShared ? `${Math.floor(100 / columns.length) - 1}%` : undefined);
    const size = share === undefined ? '' : ` width="${share}"`;
    return `<td${classOf(names)}${size} valign="${valign}" align="${align}" style="${style}">
${renderBlocks(layout, listElements(column))}
</td>`;
  });
  const gap = Number(gutter);
  const between = `<td${classOf(stack === 'yes' ? 'gutter' : '')} width="${gap}" style="width:${gap}px;${flat}">&nbsp;</td>`;
  return `${openTable({ className: '', style: 'table-layout:fixed' }, 'width="100%"')}
<tr>
${cells.join(gap === 0 ? '\n' : `\n${between}\n`)}
</tr>
</table>${renderGap(element.attributes)}`;
}

/** A table in earnest, with a header for each row: what an invoice lists. */
function renderRows(layout: Layout, element: MarkupElement): string {
  const rows = listElements(element);
  const { line, label: labelColor } = element.attributes;
  const frame = paintElement(layout, 'line', line);
  const lines = rows.map((row, index) => {
    const strong = row.attributes.strong === 'yes';
    const attributes = { ...element.attributes, line: '1.5', weight: strong ? '700' : '400' };
    const value = paintElement(layout, 'text', readColor(layout, attributes));
    const label = strong || labelColor === undefined ? value : paintElement(layout, 'text', labelColor);
    const isLast = index === rows.length - 1;
    const edge =
      line === undefined || isLast ? '' : `border-bottom:1px solid ${findColor(layout, line).light}`;
    const base = [`padding:12px 0`, fontStyle(layout, attributes), edge];
    const caption = readAttribute(row.attributes, 'label');
    return `<tr>
<th scope="row" align="left" valign="top"${classOf(joinNames(label.className, frame.className))} style="${joinStyles([...base, 'text-align:left', label.style])}">${caption}</th>
<td align="right" valign="top"${classOf(joinNames(value.className, frame.className))} style="${joinStyles([...base, 'padding-left:16px', 'text-align:right', value.style])}">${renderInline(layout, row)}</td>
</tr>`;
  });
  return `<table width="100%" cellpadding="0" cellspacing="0" border="0" style="width:100%">
${lines.join('\n')}
</table>${renderGap(element.attributes)}`;
}

/** One point of a list: a mark, and beside it whatever belongs to it. */
function renderItem(layout: Layout, element: MarkupElement): string {
  const { size = '40', distance = '16' } = element.attributes;
  const mark = renderMark(layout, {
    ...element,
    attributes: { ...element.attributes, size, gap: '0' },
    children: [readAttribute(element.attributes, 'mark')],
  });
  return `${openTable({ className: '', style: '' }, 'width="100%"')}
<tr><td width="${Number(size) + Number(distance)}" valign="top" style="width:${Number(size) + Number(distance)}px">
${mark}
</td><td valign="top" style="text-align:left">
${renderBlocks(layout, listElements(element))}
</td></tr>
</table>${renderGap({ gap: '20', ...element.attributes })}`;
}

/** A letter or an ornament on a coloured square or disc; screen readers pass over it. */
function renderMark(layout: Layout, element: MarkupElement): string {
  const { size = '64', radius, align = 'left', background } = element.attributes;
  const px = Number(size);
  const fill = paintElement(layout, 'fill', background);
  const text = paintElement(layout, 'text', readColor(layout, element.attributes));
  const glyph = element.attributes.glyph ?? String(Math.round(px * 0.45));
  const font = fontStyle(layout, { weight: '700', ...element.attributes, size: glyph, line: `${px}px` });
  const style = joinStyles([
    `width:${px}px`,
    `height:${px}px`,
    `border-radius:${toPx(radius ?? String(Math.round(px / 2)))}`,
    'text-align:center',
    'mso-line-height-rule:exactly',
    font,
    fill.style,
    text.style,
  ]);
  return `<table role="presentation" aria-hidden="true" align="${align}" cellpadding="0" cellspacing="0" border="0">
<tr><td${classOf(joinNames(fill.className, text.className))} width="${px}" height="${px}" align="center" valign="middle" style="${style}">${renderInline(layout, element)}</td></tr>
</table>${align === 'center' ? '' : `\n${clearing}`}${renderGap(element.attributes)}`;
}

/** What is to be copied by hand: large, in one width, on a field of its own. */
function renderCode(layout: Layout, element: MarkupElement): string {
  const { background, radius = '12', padding = '20' } = element.attributes;
  const fill = paintElement(layout, 'fill', background);
  const text = paintElement(layout, 'text', readColor(layout, element.attributes));
  const font = fontStyle(layout, {
    font: 'mono',
    size: '32',
    line: '1.3',
    weight: '700',
    ...element.attributes,
  });
  const px = Number(element.attributes.size ?? 32);
  if (px > headingPxOnPhones) layout.used.headings.add(px);
  const style = joinStyles([
    `padding:${toPx(padding)}`,
    `border-radius:${toPx(radius)}`,
    `text-align:${element.attributes.align ?? 'center'}`,
    font,
    fill.style,
    text.style,
  ]);
  const names = joinNames(fill.className, text.className, px > headingPxOnPhones ? `h${px}` : '');
  return `${openTable({ className: '', style: '' }, 'width="100%"')}
<tr><td${classOf(names)} style="${style}">${renderInline(layout, element)}</td></tr>
</table>${renderGap(element.attributes)}`;
}

function renderDivider(layout: Layout, element: MarkupElement): string {
  const name = readAttribute(element.attributes, 'color');
  const { weight = '1', dashed } = element.attributes;
  const frame = paintElement(layout, 'line', name);
  const line = `border-top:${Number(weight)}px ${dashed === 'yes' ? 'dashed' : 'solid'} ${findColor(layout, name).light}`;
  return `${openTable({ className: '', style: '' }, 'width="100%"')}
<tr><td${classOf(frame.className)} style="${line};${flat};height:1px">&nbsp;</td></tr>
</table>${renderGap({ gap: '24', ...element.attributes })}`;
}

/** A band of colours. A colour that is named twice is twice as wide. */
function renderStripes(layout: Layout, element: MarkupElement): string {
  const height = Number(element.attributes.height ?? 8);
  const { radius } = element.attributes;
  const names = readAttribute(element.attributes, 'colors').split(' ');
  const cells = names.map((name, index) => {
    const fill = paintElement(layout, 'fill', name);
    const px = toPx(radius ?? '0');
    const ends = [index === 0 ? px : '0', index === names.length - 1 ? px : '0'];
    const corners = radius === undefined ? '' : `border-radius:${ends[0]} ${ends[1]} 0 0`;
    const style = joinStyles([`height:${height}px`, flat, corners, fill.style]);
    return `<td${classOf(fill.className)} width="${Math.floor(100 / names.length)}%" height="${height}" style="${style}">&nbsp;</td>`;
  });
  return `<table role="presentation" aria-hidden="true" width="100%" cellpadding="0" cellspacing="0" border="0">
<tr>
${cells.join('\n')}
</tr>
</table>${renderGap({ gap: '0', ...element.attributes })}`;
}

/** The round corners of each shape, as a share of the tile: top left, top right, bottom right, bottom left. */
const shapes: Readonly<Record<string, string>> = {
  tl: '100% 0 0 0',
  tr: '0 100% 0 0',
  br: '0 0 100% 0',
  bl: '0 0 0 100%',
  dot: '50%',
  leaf: '100% 0 100% 0',
  blade: '0 100% 0 100%',
  arch: '50% 50% 0 0',
  bowl: '0 0 50% 50%',
  drop: '50% 50% 50% 0',
};

/**
 * A picture of square tiles, a line of text for each row of them: `ground` is a plain tile, `ground:shape:figure` one
 * with a shape in another colour.
 */
function renderMosaic(layout: Layout, element: MarkupElement): string {
  const rows = element.children
    .filter((child) => typeof child === 'string')
    .join('')
    .split('\n')
    .map((row) => row.trim().split(/\s+/))
    .filter((row) => row.join('') !== '');
  const count = rows[0]?.length ?? 0;
  if (rows.some((row) => row.length !== count)) throw new Error('the rows of a mosaic differ in length');
  layout.used.mosaics.add(count);
  const heightPx = Number(element.attributes.height ?? Math.round(widthPx / count));
  const lines = rows.map(
    (row) => `<tr>\n${row.map((tile) => renderTile(layout, tile, count, heightPx)).join('\n')}\n</tr>`,
  );
  return `<table role="presentation" aria-hidden="true" width="100%" cellpadding="0" cellspacing="0" border="0" style="table-layout:fixed">
${lines.join('\n')}
</table>${renderGap({ gap: '0', ...element.attributes })}`;
}

function renderTile(layout: Layout, tile: string, count: number, heightPx: number): string {
  const [groundName, shape, figureName] = tile.split(':');
  const ground = paintElement(layout, 'fill', groundName);
  const size = `height:${heightPx}px;${flat}`;
  const open = `<td${classOf(joinNames(`m${count}`, ground.className))} style="${joinStyles([size, ground.style])}">`;
  if (shape === undefined) return `${open}&nbsp;</td>`;
  const corners = shapes[shape];
  if (corners === undefined) throw new Error(`the shape "${shape}" is not known`);
  const figure = paintElement(layout, 'fill', figureName);
  const style = joinStyles([size, `border-radius:${corners}`, figure.style]);
  return `${open}<div class="${joinNames(`m${count}`, figure.className)}" style="${style}">&nbsp;</div></td>`;
}

function renderSpace(heightPx: number): string {
  return `<div style="height:${heightPx}px;line-height:${heightPx}px;mso-line-height-rule:exactly">&nbsp;</div>`;
}

/** Tables have no margins in Outlook. */
function renderGap(attributes: Attributes): string {
  const gap = Number(attributes.gap ?? 24);
  return gap === 0 ? '' : `\n${renderSpace(gap)}`;
}

/**
 * Why one gets this letter, which is the element's content, and who sends it. A campaign names the sender's postal
 * address and a way out, as the laws of most countries ask.
 */
function renderFooter(layout: Layout, element: MarkupElement): string {
  const kind = readAttribute(element.attributes, 'kind');
  const { align = 'center', padding = '32 32 16' } = element.attributes;
  const color = element.attributes.color ?? 'muted';
  const base = { size: '14', line: '1.6', gap: '8', color, align };
  const link = (href: string, label: string): MarkupElement => ({
    name: 'a',
    attributes: { href, color },
    children: [label],
  });
  const paragraph = (children: MarkupElement['children']): MarkupElement => ({
    name: 'text',
    attributes: base,
    children,
  });
  const signatures: Readonly<Record<string, MarkupElement[]>> = {
    campaign: [
      paragraph(['{{company_name}} · {{company_address}}']),
      paragraph([link('{{unsubscribe_url}}', 'Unsubscribe')]),
    ],
    service: [paragraph(['{{company_name}} · ', link('{{support_url}}', 'Help')])],
  };
  const signature = signatures[kind];
  if (signature === undefined) throw new Error(`there is no footer of the kind "${kind}"`);
  const attributes = { padding, align, ...pickBackground(element.attributes) };
  return renderFrame(
    layout,
    { name: 'section', attributes, children: [paragraph(element.children), ...signature] },
    padding,
  );
}

function pickBackground({ background, radius }: Attributes): Attributes {
  return { ...(background === undefined ? {} : { background }), ...(radius === undefined ? {} : { radius }) };
}

type PaintedElement = { className: string; style: string };

function openTable({ className, style }: PaintedElement, attributes: string): string {
  const styles = style === '' ? '' : ` style="${style}"`;
  return `<table role="presentation" ${attributes} cellpadding="0" cellspacing="0" border="0"${classOf(className)}${styles}>`;
}

/** The light colour as a style, the dark one as a class. Borders are styled by their elements, which know the side. */
function paintElement(layout: Layout, paint: Paint, color: string | undefined): PaintedElement {
  if (color === undefined) return { className: '', style: '' };
  const { light } = findColor(layout, color);
  const className = `${paint}-${color}`;
  layout.used.paints.set(className, { paint, color });
  const styles = { text: `color:${light}`, fill: `background-color:${light}`, line: '' };
  return { className, style: styles[paint] };
}

function readColor(layout: Layout, attributes: Attributes): string {
  return attributes.color ?? readAttribute(layout.defaults, 'color');
}

function findColor(layout: Layout, name: string): Color {
  const color = layout.colors.get(name);
  if (color === undefined) throw new Error(`the colour "${name}" is not known`);
  return color;
}

function findFont(name: string): string {
  const font = fonts[name];
  if (font === undefined) throw new Error(`the font "${name}" is not known`);
  return font;
}

function readAttribute(attributes: Attributes, name: string): string {
  const value = attributes[name];
  if (value === undefined) throw new Error(`the attribute "${name}" is missing`);
  return value;
}

/** "40 48" is "40px 48px". */
function toPx(lengths: string): string {
  return lengths
    .split(' ')
    .map((length) => (length === '0' ? '0' : `${Number(length)}px`))
    .join(' ');
}

function classOf(names: string): string {
  return names === '' ? '' : ` class="${names}"`;
}

function joinNames(...names: string[]): string {
  return names.filter((name) => name !== '').join(' ');
}

function joinStyles(styles: readonly string[]): string {
  return styles.filter((style) => style !== '').join(';');
}

function escapeQuotes(text: string): string {
  return text.replaceAll('"', '&quot;');
}
