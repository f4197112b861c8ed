import { Parser } from 'htmlparser2';

/** Mail with more HTML than 102 kB is cut off by Gmail; making text of what lies beyond this would take a second. */
const htmlLengthMax = 262_144;
/** Mail that people write is nested twenty or thirty deep. Each closing tag is looked for among all open elements. */
const depthMax = 200;
/** Each line of a list is indented by each level: a hundred levels would make twenty times as much text as HTML. */
const listDepthMax = 10;
/** Long numbers before short items. */
const textLengthMax = 2 * htmlLengthMax;
const pieceLength = 4_096;

/**
 * A readable text part for mail that has only HTML, placeholders and all; null where the HTML holds no text, or is too
 * large or too deeply nested for that. It is made for each message that comes with HTML alone, so that it is written as
 * the HTML is read, without a tree.
 */
export function makeTextPart(html: string): string | null {
  if (html.length > htmlLengthMax) return null;
  const walk: Walk = { page: openPage(), open: [], lists: [], hiddenFrom: null, isGivenUp: false };
  const parser = new Parser({
    onopentag: (name, attributes) => {
      openElement(walk, name, attributes);
    },
    ontext: (text) => {
      if (walk.hiddenFrom !== null) return;
      if (walk.page.verbatimDepth > 0) writeVerbatim(walk.page, text);
      else writeText(walk.page, text);
    },
    onclosetag: (name) => {
      closeElement(walk, name);
    },
  });
  // In pieces: the parser reads all that it was given, whatever is found in it.
  for (let start = 0; start < html.length && !isOver(walk); start += pieceLength)
    parser.write(html.slice(start, start + pieceLength));
  if (isOver(walk)) return null;
  parser.end();
  const text = walk.page.text.trim();
  return text === '' || isOver(walk) ? null : text;
}

function isOver({ isGivenUp, page }: Walk): boolean {
  return isGivenUp || page.text.length > textLengthMax;
}

/** Where the reading of the HTML is. */
type Walk = {
  page: Page;
  open: OpenElement[];
  lists: OpenList[];
  /** How many elements are open around one that readers do not see; null outside of such. */
  hiddenFrom: number | null;
  isGivenUp: boolean;
};

type OpenElement = { name: string; breaksAfter: number };
type OpenList = { nextNumber: number | null; writeNumber: (number: number) => string };
/** `text` is what it shows, as far as it may be its address. */
type OpenLink = { address: string; text: string };

/** Line breaks before and after an element that stands on lines of its own; two make an empty line. */
const blocks = new Map<string, readonly [before: number, after: number]>([
  ...['h1', 'h2', 'h3', 'h4', 'h5', 'h6'].map((name) => [name, [3, 2]] as const),
  // Tables lay mail out; as tables of text they would be columns of letters.
  ...['p', 'pre', 'blockquote', 'table'].map((name) => [name, [2, 2]] as const),
  ...['article', 'aside', 'div', 'footer', 'form', 'header', 'main', 'nav', 'section', 'tr', 'dt', 'dd'].map(
    (name) => [name, [1, 1]] as const,
  ),
]);

const notSeen: ReadonlySet<string> = new Set(['script', 'style', 'title', 'template']);

function openElement(walk: Walk, name: string, attributes: Readonly<Record<string, string>>): void {
  const { page, open } = walk;
  const depth = open.length;
  const element: OpenElement = { name, breaksAfter: 0 };
  open.push(element);
  if (depth >= depthMax) walk.isGivenUp = true;
  if (walk.hiddenFrom !== null) return;
  // What readers do not see: preview text, most of all.
  if (notSeen.has(name) || (attributes.style !== undefined && /display: ?none/.test(attributes.style))) {
    walk.hiddenFrom = depth;
    return;
  }
  const [before, after] = blocks.get(name) ?? [0, 0];
  element.breaksAfter = after;
  breakLines(page, before);
  switch (name) {
    case 'br':
      page.breaks = Math.min(page.breaks + 1, breaksMax);
      return;
    case 'hr':
      breakLines(page, 2);
      writeText(page, '-'.repeat(10));
      element.breaksAfter = 2;
      return;
    case 'pre':
      page.verbatimDepth += 1;
      return;
    case 'ul':
    case 'ol':
      element.breaksAfter = walk.lists.length > 0 ? 1 : 2;
      breakLines(page, element.breaksAfter);
      walk.lists.push(openList(name, attributes));
      if (walk.lists.length > listDepthMax) walk.isGivenUp = true;
      return;
    case 'li':
      openItem(page, takeMark(walk.lists.at(-1)));
      return;
    case 'a':
      page.links.push({ address: addressOf(attributes.href), text: '' });
      return;
  }
}

function closeElement(walk: Walk, name: string): void {
  const { page, open } = walk;
  const element = open.pop();
  if (walk.hiddenFrom !== null) {
    if (open.length === walk.hiddenFrom) walk.hiddenFrom = null;
    return;
  }
  switch (name) {
    case 'td':
    case 'th':
      // Cells beside each other are words beside each other.
      page.isSpaceDue = true;
      break;
    case 'pre':
      page.verbatimDepth -= 1;
      break;
    case 'ul':
    case 'ol':
      walk.lists.pop();
      break;
    case 'li':
      closeItem(page);
      return;
    case 'a':
      closeLink(page);
      break;
  }
  breakLines(page, element?.breaksAfter ?? 0);
}

/** Empty for a link that leads nowhere else. */
function addressOf(href = ''): string {
  const address = href.replace(/^mailto:/, '').trim();
  return address.startsWith('#') ? '' : address;
}

function closeLink(page: Page): void {
  const link = page.links.pop();
  if (link === undefined || link.address === '' || link.text === link.address) return;
  if (link.text === '') {
    writeText(page, link.address);
    return;
  }
  page.isSpaceDue = true;
  writeText(page, `(${link.address})`);
}

function openList(name: string, { start, type }: Readonly<Record<string, string>>): OpenList {
  if (name === 'ul') return { nextNumber: null, writeNumber: String };
  const first = Number(start);
  const nextNumber = start !== undefined && Number.isSafeInteger(first) ? first : 1;
  return { nextNumber, writeNumber: numberings.get(type) ?? String };
}

/** As the attribute `type` has them. */
const numberings: ReadonlyMap<string | undefined, OpenList['writeNumber']> = new Map([
  ['a', (number: number) => lettersOf(number)],
  ['A', (number: number) => lettersOf(number).toUpperCase()],
  ['i', (number: number) => romanOf(number)],
  ['I', (number: number) => romanOf(number).toUpperCase()],
]);

/** a to z, then aa. */
function lettersOf(number: number): string {
  if (number < 1) return String(number);
  const last = (number - 1) % 26;
  const before = (number - 1 - last) / 26;
  return (before > 0 ? lettersOf(before) : '') + String.fromCharCode(0x61 + last);
}

const romanDigits = {
  m: 1_000,
  cm: 900,
  d: 500,
  cd: 400,
  c: 100,
  xc: 90,
  l: 50,
  xl: 40,
  x: 10,
  ix: 9,
  v: 5,
  iv: 4,
  i: 1,
};

function romanOf(number: number): string {
  if (number < 1 || number > 3_999) return String(number);
  let text = '';
  let rest = number;
  for (const [digit, value] of Object.entries(romanDigits)) {
    text += digit.repeat(Math.floor(rest / value));
    rest %= value;
  }
  return text;
}

/** Of an item; also of one that stands outside of a list. */
function takeMark(list: OpenList | undefined): string {
  if (list === undefined || list.nextNumber === null) return ' * ';
  list.nextNumber += 1;
  return ` ${list.writeNumber(list.nextNumber - 1)}. `;
}

/** The text as far as it is written, and what comes before its next word. */
type Page = {
  text: string;
  breaks: number;
  isSpaceDue: boolean;
  /** Of the items that are open: the mark of each, from the outermost on. */
  marks: string[];
  /** What continued lines begin with: as wide as the marks. */
  indent: string;
  /** Of items that have no text yet: the last marks. */
  marksDue: string;
  /** In how many elements whose blanks and line ends are kept. */
  verbatimDepth: number;
  links: OpenLink[];
};

const breaksMax = 3;

function openPage(): Page {
  return {
    text: '',
    breaks: 0,
    isSpaceDue: false,
    marks: [],
    indent: '',
    marksDue: '',
    verbatimDepth: 0,
    links: [],
  };
}

/** So many at least, between what is written and what comes. */
function breakLines(page: Page, count: number): void {
  // An item begins on the line of its mark.
  if (page.marksDue === '') page.breaks = Math.max(page.breaks, count);
}

function openItem(page: Page, mark: string): void {
  breakLines(page, 1);
  page.marks.push(mark);
  page.indent += ' '.repeat(mark.length);
  page.marksDue += mark;
}

function closeItem(page: Page): void {
  const mark = page.marks.pop() ?? '';
  page.indent = page.indent.slice(mark.length);
  if (page.marksDue === '') page.breaks = 1;
  else page.marksDue = page.marksDue.slice(0, -mark.length);
}

const noBreakSpace = 0xa0;
const needsCollapsing = /[\t\r\n\f\u200b]| {2}/;

/** As HTML means it: any blanks are one, and none at the beginning of a line. */
function writeText(page: Page, text: string): void {
  const words = needsCollapsing.test(text) ? text.replaceAll(/[ \t\r\n\f\u200b]+/g, ' ') : text;
  const start = words.startsWith(' ') ? 1 : 0;
  const end = words.length - (words.length > 1 && words.endsWith(' ') ? 1 : 0);
  page.isSpaceDue ||= start > 0;
  if (start >= end || isSpacer(words)) return;
  put(page, words.slice(start, end));
  page.isSpaceDue = end < words.length;
}

/** Cells that make room hold a blank that is kept by browsers, and say nothing. */
function isSpacer(words: string): boolean {
  return words.charCodeAt(0) === noBreakSpace && !/[^ \u00a0]/.test(words);
}

function writeVerbatim(page: Page, text: string): void {
  for (const [index, line] of text.split(/\r\n|\r|\n/).entries()) {
    if (index > 0) page.breaks = Math.min(page.breaks + 1, breaksMax);
    if (line !== '') put(page, line);
  }
}

/** Writes words, and before them what is due. */
function put(page: Page, words: string): void {
  const link = page.links.at(-1);
  if (link !== undefined && link.text.length <= link.address.length) {
    const isApart = link.text !== '' && (page.isSpaceDue || page.breaks > 0);
    link.text += (isApart ? ' ' : '') + words;
  }
  begin(page);
  page.text += words;
}

function begin(page: Page): void {
  const { text, breaks, indent, marksDue } = page;
  const isLineNew = text === '' || breaks > 0 || marksDue !== '';
  if (isLineNew) {
    if (text !== '') page.text += '\n'.repeat(breaks);
    page.text += indent.slice(0, indent.length - marksDue.length) + marksDue;
  } else if (page.isSpaceDue) page.text += ' ';
  page.breaks = 0;
  page.isSpaceDue = false;
  page.marksDue = '';
}
