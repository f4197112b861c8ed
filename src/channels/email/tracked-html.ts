import { QuoteType, Tokenizer } from 'htmlparser2';
import { compileText } from '../placeholders.ts';
import { isShownAddress, shownAddressLengthMax } from './shown-address.ts';
import { parseUrl } from '../../platform/url.ts';

/**
 * Tracking of clicks and opens. A link of a tracked email leads to this installation, which remembers the click
 * and passes the reader on to where the link led before. Its address says only whose copy it was and the number of the
 * link: the target stays here, so that no one can make an address of ours lead anywhere else.
 *
 * `trackHtml` writes the numbers and `listLinks` says what they stand for; both go by the same reading of the HTML.
 *
 * A link whose text is an address is left alone: filters take `<a href="https://ours.example/…">www.theirs.example</a>`
 * for phishing. It has a number all the same, since links that were sent before must go on leading where they did.
 */

/** What fills a tracked copy: the address of its clicks, without the number, and that of its opens. */
export const clickPlaceholder = '_postillion.click';
export const openPlaceholder = '_postillion.open';

/** The link by which a recipient unsubscribes; it is the recipient's own, and never tracked. */
export const unsubscribePlaceholder = 'unsubscribe_url';

/** A template has at most as much. What is longer is sent as it is: reading it at every click would cost too much. */
const htmlLengthMax = 2 * 1_048_576;

/** Longer addresses are not followed by all that we pass readers on to. */
const targetLengthMax = 8_192;

/**
 * The HTML with its links replaced by `{{_postillion.click}}/<n>`, counted from 0 in the order of the document, and
 * with an invisible image at the end of its body. Whatever is not asked for stays as it is, and so do links that show
 * an address, and HTML of more than 2 MB.
 */
export function trackHtml(html: string, { opens, clicks }: { opens: boolean; clicks: boolean }): string {
  // Most transactional mail is not tracked, and reading 10 kB of HTML takes 50 µs.
  if (!opens && !clicks) return html;
  if (html.length > htmlLengthMax) return html;
  const { links, bodyEnd } = readHtml(html);
  const parts: string[] = [];
  let position = 0;
  const replace = (start: number, end: number, text: string) => {
    parts.push(html.slice(position, start), text);
    position = end;
  };
  const addImage = (at: number) => {
    replace(at, at, openImage);
  };
  let isImagePlaced = !opens;
  for (const [number, link] of links.entries()) {
    const { start, end } = link;
    if (!isImagePlaced && start >= bodyEnd) {
      addImage(bodyEnd);
      isImagePlaced = true;
    }
    if (clicks && !showsAddress(link)) replace(start, end, `"{{${clickPlaceholder}}}/${number}"`);
  }
  if (!isImagePlaced) addImage(bodyEnd);
  parts.push(html.slice(position));
  return parts.join('');
}

const openImage = `<img src="{{${openPlaceholder}}}" width="1" height="1" alt="" style="display:block;width:1px;height:1px;border:0">`;

/** The targets of the links that `trackHtml` numbers, in the order of their numbers, with their placeholders. */
export function listLinks(html: string): string[] {
  return html.length > htmlLengthMax ? [] : readHtml(html).links.map(({ target }) => target);
}

/** The texts of the links that `trackHtml` numbers, with their placeholders, and whether it leaves them alone. */
export function listLinkTexts(html: string): { text: string; isLeftAlone: boolean }[] {
  if (html.length > htmlLengthMax) return [];
  return readHtml(html).links.map((link) => ({ text: link.text, isLeftAlone: showsAddress(link) }));
}

/** Where the value of an attribute stands, with its quotes, where it leads to, and what the reader sees. */
type Link = { start: number; end: number; target: string; text: string };

/**
 * What will be filled in is not known here, since a campaign's HTML is read once for all of its copies. A placeholder
 * may be a part of an address, and is one where the link leads to the very same.
 */
function showsAddress({ text, target }: Link): boolean {
  const name = readPlaceholderAlone(text.trim());
  return name === null
    ? isShownAddress(compileText(text, 'text').literals.join('x'))
    : name === readPlaceholderAlone(target);
}

/** The name of the placeholder that a text consists of. */
function readPlaceholderAlone(text: string): string | null {
  const { literals, placeholders } = compileText(text, 'text');
  const isAlone = placeholders.length === 1 && literals.every((literal) => literal === '');
  return isAlone ? (placeholders[0]?.name ?? null) : null;
}

type Reading = {
  links: Link[];
  /** Before the last `</body>`, or at the end. */
  bodyEnd: number;
};

const linkTags: ReadonlySet<string> = new Set(['a', 'area']);

function readHtml(html: string): Reading {
  const links: Link[] = [];
  // A tag that never ends is none (HTML standard, 13.2.5.3 and on: `eof-in-tag`).
  let linksOfTag: Link[] = [];
  /** The link whose text is being read; what has no end tag ends with the next link. */
  let openLink: Link | null = null;
  let bodyEnd = html.length;
  let tagName = '';
  // Of several attributes of one name the first counts (HTML standard, 13.2.5.33).
  let hasHref = false;
  let isHref = false;
  let nameEnd = 0;
  let value = '';

  const endTag = () => {
    links.push(...linksOfTag);
    if (tagName === 'a') openLink = linksOfTag[0] ?? null;
    linksOfTag = [];
  };
  const addText = (text: string) => {
    // One character more is enough to know that it is too long.
    if (openLink !== null) openLink.text += text.slice(0, shownAddressLengthMax + 1 - openLink.text.length);
  };
  const tokenizer = new Tokenizer(
    {},
    {
      onopentagname: (start, end) => {
        tagName = html.slice(start, end).toLowerCase();
        hasHref = false;
        linksOfTag = [];
      },
      onattribname: (start, end) => {
        isHref = linkTags.has(tagName) && !hasHref && html.slice(start, end).toLowerCase() === 'href';
        hasHref ||= isHref;
        nameEnd = end;
        value = '';
      },
      onattribdata: (start, end) => {
        if (isHref) value += html.slice(start, end);
      },
      onattribentity: (codepoint) => {
        if (isHref) value += String.fromCodePoint(codepoint);
      },
      onattribend: (quote, end) => {
        const target = isHref && quote !== QuoteType.NoValue ? readTarget(value) : null;
        isHref = false;
        if (target !== null) linksOfTag.push({ start: findValueStart(html, nameEnd), end, target, text: '' });
      },
      onclosetag: (start, end) => {
        const name = html.slice(start, end).toLowerCase();
        if (name === 'body') bodyEnd = start - '</'.length;
        if (name === 'a') openLink = null;
      },
      oncdata: ignore,
      oncomment: ignore,
      ondeclaration: ignore,
      onend: ignore,
      onopentagend: endTag,
      onprocessinginstruction: ignore,
      onselfclosingtag: endTag,
      ontext: (start, end) => addText(html.slice(start, end)),
      ontextentity: (codepoint) => addText(String.fromCodePoint(codepoint)),
    },
  );
  tokenizer.write(html);
  tokenizer.end();
  return { links, bodyEnd };
}

function ignore(): void {
  return undefined;
}

/** After the name of an attribute that has a value: white space, an equals sign, white space. */
function findValueStart(html: string, nameEnd: number): number {
  let position = skipSpace(html, nameEnd);
  if (html[position] === '=') position = skipSpace(html, position + 1);
  return position;
}

function skipSpace(html: string, start: number): number {
  let position = start;
  // Ends with the text, which has no space after its last character.
  while (' \t\n\f\r'.includes(html[position] ?? 'x')) position += 1;
  return position;
}

/** Up to the path: what is filled in for the rest cannot lead to another server. */
const knownOrigin = /^https?:\/\/[^/?#\\]+[/?#]/i;
const anyWebAddress = /^https?:\/\//i;

/** Where a link leads to, or null if it is left alone. */
function readTarget(value: string): string | null {
  const target = cleanAddress(value);
  if (target.length > targetLengthMax) return null;
  const { literals, placeholders } = compileText(target, 'url');
  if (placeholders.some(({ name }) => isOwnName(name))) return null;
  const [first = ''] = literals;
  if (placeholders.length === 0) return anyWebAddress.test(first) && !isCutOff(first) ? target : null;
  // What it says is known only when it is filled in; whether it is a web address is looked at then.
  if (readPlaceholderAlone(target) !== null) return target;
  return knownOrigin.test(first) && !literals.some(isCutOff) ? target : null;
}

function isOwnName(name: string): boolean {
  return name === unsubscribePlaceholder || name.startsWith('_postillion.');
}

/** A placeholder that spaces have broken up, in a value without quotes: it is filled in across the attributes. */
function isCutOff(literal: string): boolean {
  return literal.includes('{{');
}

/** As browsers take an address from an attribute (URL standard, 4.4): no line ends, no space around it. */
function cleanAddress(value: string): string {
  return value
    .replace(/[\t\r\n]+/g, '')
    .replace(/^[\0-\x20]+/, '')
    .trimEnd();
}

/** How long a filled-in target may be. */
const addressLengthMax = 16_384;

/**
 * The address that a reader is passed on to, in ASCII without control characters, or null if that would lead
 * anywhere but to a web server.
 */
export function readWebAddress(text: string): string | null {
  const url = text.length > addressLengthMax ? null : parseUrl(text);
  if (url === null) return null;
  const { protocol, href } = url;
  return (protocol === 'http:' || protocol === 'https:') && /^[!-~]+$/.test(href) ? href : null;
}
