import { QuoteType, Tokenizer } from 'htmlparser2';
import { trimAsBrowsers, type UrlPart } from './url-values.ts';

/**
 * Where the placeholders of a text stand, which decides how their values are written (contextual escaping). It is read
 * off the template alone, once, and never off a value.
 */
export type Place = {
  /** `words` are anything that is not a part of a URL. */
  part: UrlPart | 'words';
  /**
   * What may not be in a value: nothing in plain text; what HTML gives a meaning to; and, in an attribute without quotes,
   * what ends it. Where such an attribute is a placeholder alone, an empty value would take the next attribute for its own.
   */
  escape: 'none' | 'html' | 'unquoted' | 'unquoted_alone';
};

/** What a text is as a whole: `url` is an address alone. */
export type TextForm = 'text' | 'html' | 'url';

/**
 * Stands for a placeholder: a control character without a meaning in HTML or in a URL, which no character reference
 * stands for (HTML standard, 13.2.5.80: `&#159;` is another character). A text of Latin characters remains one of one
 * octet a character with it, which is read in half the time.
 */
export const placeholderMark = '\x9f';

const parts = [
  'words',
  'whole',
  'base',
  'scheme',
  'host',
  'host_end',
  'relative',
  'path',
  'component',
] as const satisfies Place['part'][];
const escapes = ['none', 'html', 'unquoted', 'unquoted_alone'] as const satisfies Place['escape'][];

const places: readonly Place[] = escapes.flatMap((escape) => parts.map((part) => ({ part, escape })));

/** The places of a text's placeholders in their order, in an octet each: of 30 MB six million can be placeholders. */
export type Places = { at: (index: number) => Place };

/**
 * `marked` is the text with `placeholderMark` for each of its `count` placeholders. Takes time in proportion to its
 * length, whatever it holds.
 */
export function findPlaces(marked: string, count: number, form: TextForm): Places {
  const codes = new Uint8Array(count);
  const note = (index: number, part: Place['part'], escape: Place['escape']) => {
    codes[index] = escapes.indexOf(escape) * parts.length + parts.indexOf(part);
  };
  if (form === 'html') {
    codes.fill(parts.length);
    readHtml(marked, note);
  } else {
    const read = form === 'url' ? readUrl : readWords;
    read(marked, 0, (index, part) => {
      note(index, part, 'none');
    });
  }
  return { at: (index) => places[codes[index] ?? 0] ?? plain };
}

const plain: Place = { part: 'words', escape: 'none' };
/** Of a text without links: there is nothing to read. */
export const allWords: Places = { at: () => plain };

/** Whatever `readWords` takes for a link has one of these. */
export function mayHaveLinks(text: string): boolean {
  return text.includes('://') || text.includes('=');
}

type Note = (index: number, part: Place['part']) => void;

/** Attributes whose value is one URL. */
const urlAttributes: ReadonlySet<string> = new Set(
  'href src action formaction background poster cite data longdesc lowsrc dynsrc xlink:href icon manifest'.split(
    ' ',
  ),
);
/** Attributes whose values are several URLs, each followed by what else is known of it. */
const urlListAttributes: ReadonlySet<string> = new Set(['srcset', 'imagesrcset']);

const blank = '[ \\t\\r\\n\\f]';
// More than that is no tag that somebody wrote, and would take the memory that regular expressions have.
const attributes = `(?:${blank}+[a-z][a-z0-9:_-]*(?:=(?:"[^"]*"|'[^']*'|[^ \\t\\r\\n\\f"'<>=\`]+))?){0,64}${blank}*`;
/** What is in these is no markup. */
const rawTextTags = 'script|style|title|textarea|iframe|noembed|noframes|plaintext|xmp';
/**
 * A piece of HTML that is read alone as it is among others: text up to the next tag, and tags, comments and
 * declarations that are written as most are. Those without placeholders are passed over by it; to read all of an email
 * took ten times as long.
 */
const wholePiece = new RegExp(
  [
    '[^<]+',
    `<(?!(?:${rawTextTags})\\b)[a-z][a-z0-9:-]*${attributes}/?>`,
    `</[a-z][a-z0-9:-]*${blank}*>`,
    `<(style|title)${attributes}>[^<]*</\\1${blank}*>`,
    '<!--(?!-?>)[^]*?--!?>',
    '<![a-z][^>]*>',
  ].join('|'),
  'iy',
);

/** All that comes after another in the text, as the places in it are numbered. */
function readHtml(
  html: string,
  note: (index: number, part: Place['part'], escape: Place['escape']) => void,
): void {
  let index = 0;
  let nextMark = html.indexOf(placeholderMark);
  /** How many placeholders there are before a position, which only ever grows. */
  const countUpTo = (position: number): number => {
    while (nextMark !== -1 && nextMark < position) {
      index += 1;
      nextMark = html.indexOf(placeholderMark, nextMark + 1);
    }
    return index;
  };

  const noteInMarkup: Note = (at, part) => {
    note(at, part, 'html');
  };

  /** What it returns reads a range, which begins in text. */
  const createReader = (isComment: boolean): ((start: number, end: number) => void) => {
    let rangeStart = 0;
    let part = '';
    let words: Run = { text: '', first: 0 };
    let value: Run = { text: '', first: 0 };
    let attribute = '';
    const addWords = (text: string, end: number) => {
      // `end` is where the text ends: no other placeholder is between what was counted and the text.
      if (words.text === '') words.first = countUpTo(rangeStart + end) - countMarks(text);
      words.text += text;
    };
    const endWords = () => {
      if (words.text.includes(placeholderMark)) readWords(words.text, words.first, noteInMarkup);
      words = { text: '', first: 0 };
    };
    const endValue = (quote: QuoteType) => {
      if (!value.text.includes(placeholderMark)) return;
      const escape =
        quote !== QuoteType.Unquoted
          ? 'html'
          : value.text === placeholderMark
            ? 'unquoted_alone'
            : 'unquoted';
      // What is read as words is noted only where it is a part of a link.
      for (let at = countMarks(value.text) - 1; at >= 0; at -= 1) note(value.first + at, 'words', escape);
      readerOf(attribute)(value.text, value.first, (at, place) => {
        note(at, place, escape);
      });
    };
    const tokenizer = new Tokenizer(
      {},
      {
        onopentagname: endWords,
        onattribname: (start, end) => {
          attribute = part.slice(start, end).toLowerCase();
          value = { text: '', first: countUpTo(rangeStart + end) };
        },
        onattribdata: (start, end) => {
          value.text += part.slice(start, end);
        },
        onattribentity: (codepoint) => {
          value.text += String.fromCodePoint(codepoint);
        },
        onattribend: endValue,
        onclosetag: endWords,
        oncomment: (start, end, endOffset) => {
          endWords();
          // Outlook reads what stands in these; others see a comment. No comment holds another.
          if (!isComment && part.startsWith('[if', start))
            createReader(true)(rangeStart + start, rangeStart + end - endOffset);
        },
        oncdata: endWords,
        ondeclaration: endWords,
        onend: endWords,
        onopentagend: endWords,
        onprocessinginstruction: endWords,
        onselfclosingtag: endWords,
        ontext: (start, end) => {
          addWords(part.slice(start, end), end);
        },
        ontextentity: (codepoint, end) => {
          addWords(String.fromCodePoint(codepoint), end);
        },
      },
    );
    return (start, end) => {
      rangeStart = start;
      part = html.slice(start, end);
      tokenizer.reset();
      tokenizer.write(part);
      tokenizer.end();
    };
  };

  const readPieces = createReader(false);
  let position = 0;
  while (nextMark !== -1) {
    wholePiece.lastIndex = position;
    // From the first piece on that is written otherwise, all is read.
    const end = wholePiece.test(html) ? wholePiece.lastIndex : html.length;
    if (nextMark < end) {
      const piece = html.slice(position, end);
      if (/[<&]/.test(piece)) readPieces(position, end);
      else readWords(piece, index, noteInMarkup);
      countUpTo(end);
    }
    position = end;
  }
}

/** A piece of text, and which placeholder is its first. */
type Run = { text: string; first: number };

function readerOf(attribute: string): (text: string, first: number, note: Note) => void {
  if (urlAttributes.has(attribute)) return readUrl;
  return urlListAttributes.has(attribute) ? readUrlList : readWords;
}

function readUrlList(text: string, first: number, note: Note): void {
  for (const { word, wordFirst } of wordsOf(text, first)) {
    // Commas come after what is known of the URL before.
    readUrl(word.replace(/^,+/, ''), wordFirst, note);
  }
}

/**
 * Links in words, as mail clients and phones find them: from their scheme to the next white space. A link that begins
 * with a placeholder is taken for one where a parameter follows, `{{page}}?code={{code}}`; its beginning stays as it is.
 */
function readWords(text: string, first: number, note: Note): void {
  if (!mayHaveLinks(text)) return;
  for (const { word, wordFirst } of wordsOf(text, first)) {
    const start = word.search(/https?:\/\//i);
    if (start !== -1) {
      const link = word.slice(start);
      const end = word[start - 1] === '(' && link.includes(')') ? link.indexOf(')') : link.length;
      readUrl(link.slice(0, end), wordFirst + countMarks(word.slice(0, start)), note);
      continue;
    }
    const opening = /^[([]*(?=\x9f[^?#\x9f]*[?&#][\w.~-]+=)/.exec(word)?.[0];
    if (opening === undefined) continue;
    readUrl(word.slice(opening.length), wordFirst, (index, part) => {
      note(index, index === wordFirst ? 'words' : part);
    });
  }
}

/** Those that have placeholders. */
function* wordsOf(text: string, first: number): Generator<{ word: string; wordFirst: number }> {
  let wordFirst = first;
  let end = 0;
  for (let at = text.indexOf(placeholderMark); at !== -1; at = text.indexOf(placeholderMark, end)) {
    let start = at;
    while (start > end && !/[\s<>"'`]/.test(text[start - 1] ?? '')) start -= 1;
    end = findEnd(text, /[\s<>"'`]/g, at);
    const word = text.slice(start, end);
    yield { word, wordFirst };
    wordFirst += countMarks(word);
  }
}

function countMarks(text: string): number {
  let count = 0;
  for (let at = text.indexOf(placeholderMark); at !== -1; at = text.indexOf(placeholderMark, at + 1))
    count += 1;
  return count;
}

/** As browsers divide a URL (URL standard, 4.4), for which a backslash is a slash. */
function readUrl(written: string, first: number, note: Note): void {
  const url = trimAsBrowsers(written);
  const divided = divideUrl(url);
  let index = first;
  for (let at = url.indexOf(placeholderMark); at !== -1; at = url.indexOf(placeholderMark, at + 1)) {
    note(index, partAt(url, divided, at));
    index += 1;
  }
}

type DividedUrl = {
  kind: 'absolute' | 'from_base' | 'relative' | 'script';
  schemeEnd: number;
  hostStart: number;
  hostEnd: number;
  pathEnd: number;
};

function divideUrl(url: string): DividedUrl {
  const scheme = readScheme(url);
  const schemeEnd = scheme === null ? 0 : scheme.length + 1;
  const slashesEnd =
    schemeEnd + (/^[/\\]*/.exec(url.slice(schemeEnd, schemeEnd + slashesMax))?.[0].length ?? 0);
  // What a placeholder makes of the scheme may be http, which has a host whatever slashes there are.
  const hasHost =
    scheme !== null && (/^https?$/i.test(scheme) || scheme.includes(placeholderMark))
      ? true
      : slashesEnd - schemeEnd >= 2;
  const hostStart = hasHost ? slashesEnd : schemeEnd;
  const isAbsolute = hasHost || scheme === null;
  const hostEnd = isAbsolute ? findEnd(url, /[/?#\\]/g, hostStart) : hostStart;
  return {
    kind: kindOf(url, scheme, hasHost),
    schemeEnd,
    hostStart,
    hostEnd,
    pathEnd: findEnd(url, /[?#]/g, hostEnd),
  };
}

/** More slashes than that are the beginning of a path. */
const slashesMax = 16;

function kindOf(url: string, scheme: string | null, hasHost: boolean): DividedUrl['kind'] {
  if (scheme !== null) return /^(?:javascript|vbscript|data)$/i.test(scheme) ? 'script' : 'absolute';
  if (hasHost) return 'absolute';
  return url.startsWith(placeholderMark) ? 'from_base' : 'relative';
}

/** Null where there is none: `{{base}}:8080` is a host and its port, and the colon in `{{url}}&at=12:30` ends no scheme. */
function readScheme(url: string): string | null {
  const end = url.search(/[^A-Za-z0-9+.\x9f-]/);
  if (end === -1 || url[end] !== ':') return null;
  const scheme = url.slice(0, end);
  return scheme === placeholderMark && /^[0-9]/.test(url.slice(end + 1, end + 2)) ? null : scheme;
}

function findEnd(url: string, characters: RegExp, start: number): number {
  characters.lastIndex = start;
  return characters.exec(url)?.index ?? url.length;
}

function partAt(
  url: string,
  { kind, schemeEnd, hostStart, hostEnd, pathEnd }: DividedUrl,
  at: number,
): UrlPart {
  if (at < schemeEnd) return 'scheme';
  // What its author wants to have run is nothing that a value has a say in.
  if (kind === 'script') return 'component';
  if (kind === 'from_base' && at === 0) return url === placeholderMark ? 'whole' : 'base';
  if (at < hostEnd) {
    if (kind !== 'absolute') return 'relative';
    const isEnd =
      at === hostEnd - 1 && at > hostStart && !`.-@:${placeholderMark}`.includes(url[at - 1] ?? '');
    return isEnd ? 'host_end' : 'host';
  }
  // Two slashes at the beginning are followed by a host.
  if (at === 1 && kind === 'relative') return 'component';
  return at < pathEnd ? 'path' : 'component';
}
