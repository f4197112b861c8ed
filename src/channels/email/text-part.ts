import { compile, type FormatCallback } from 'html-to-text';
import { Parser } from 'htmlparser2';

/** Mail with more HTML than 102 kB is cut off by Gmail; making text of what lies beyond this would take a second. */
const htmlLengthMax = 262_144;
/**
 * Mail that people write is nested twenty or thirty deep. html-to-text takes a time that grows with the square of the
 * depth: 90 s for 400,000 `<div>`.
 */
const depthMax = 200;
/** It indents every line of a list anew at each level: a hundred levels made twenty times as much text as HTML. */
const listDepthMax = 10;
/** Long numbers before short items. */
const textLengthMax = 2 * htmlLengthMax;

/** Placeholders must stay as they are, which upper-case headings would not. */
const heading = { options: { uppercase: false } };

/** Cells beside each other are words beside each other. */
const formatCell: FormatCallback = (element, walk, builder) => {
  walk(element.children, builder);
  builder.addInline(' ');
};

const toText = compile({
  // A line that is too long is folded by its encoding; one that is broken here may be broken within a placeholder.
  wordwrap: false,
  formatters: { cell: formatCell },
  selectors: [
    ...['h1', 'h2', 'h3', 'h4', 'h5', 'h6'].map((selector) => ({ selector, ...heading })),
    // What readers do not see: preview text, most of all.
    ...['display:none', 'display: none'].map((style) => ({
      selector: `[style*="${style}"]`,
      format: 'skip',
    })),
    { selector: 'title', format: 'skip' },
    { selector: 'img', format: 'skip' },
    { selector: 'a', options: { hideLinkHrefIfSameAsText: true, linkBrackets: ['(', ')'] } },
    // Tables lay mail out; as tables of text they would be columns of letters.
    { selector: 'table', format: 'block' },
    { selector: 'tr', format: 'block', options: { leadingLineBreaks: 1, trailingLineBreaks: 1 } },
    { selector: 'hr', options: { length: 10 } },
    { selector: 'td', format: 'cell' },
    { selector: 'th', format: 'cell' },
    // A mark before each line of each level would make many times as much text as there is HTML.
    { selector: 'blockquote', format: 'block' },
  ],
});

/**
 * A readable text part for mail that has only HTML, placeholders and all; null where the HTML holds no text, or is too
 * large or too deeply nested for that.
 */
export function makeTextPart(html: string): string | null {
  if (html.length > htmlLengthMax || isTooDeep(html)) return null;
  try {
    const text = toText(html).trim();
    return text === '' || text.length > textLengthMax ? null : text;
  } catch (cause) {
    // It fails over long roman numerals.
    if (cause instanceof RangeError || cause instanceof TypeError) return null;
    throw cause;
  }
}

function isTooDeep(html: string): boolean {
  let depth = 0;
  let listDepth = 0;
  let isTooDeep = false;
  const parser = new Parser({
    onopentag: (name) => {
      depth += 1;
      if (isList(name)) listDepth += 1;
      if (depth <= depthMax && listDepth <= listDepthMax) return;
      isTooDeep = true;
      parser.pause();
    },
    onclosetag: (name, isImplied) => {
      // Headings that are never closed stand beside each other here and in browsers, and within each other there.
      if (!(isImplied && /^h[1-6]$/.test(name))) depth -= 1;
      if (isList(name)) listDepth -= 1;
    },
  });
  // In pieces: the parser reads all that it was given even while it is paused.
  for (let start = 0; start < html.length && !isTooDeep; start += pieceLength) {
    parser.write(html.slice(start, start + pieceLength));
  }
  return isTooDeep;
}

function isList(name: string): boolean {
  return name === 'ul' || name === 'ol';
}

const pieceLength = 4_096;
