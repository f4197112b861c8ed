import { compile } from 'html-to-text';
import { Parser } from 'htmlparser2';

/** Mail with more HTML than 102 kB is cut off by Gmail; making text of what lies beyond this would take a second. */
const htmlLengthMax = 262_144;
/**
 * Mail that people write is nested twenty or thirty deep. html-to-text takes a time that grows with the square of the
 * depth: 90 s for 400,000 `<div>`.
 */
const depthMax = 200;

/** Placeholders must stay as they are, which upper-case headings would not. */
const heading = { options: { uppercase: false } };

const toText = compile({
  wordwrap: 78,
  selectors: [
    ...['h1', 'h2', 'h3', 'h4', 'h5', 'h6'].map((selector) => ({ selector, ...heading })),
    // What nobody sees: preview text, most of all.
    ...['display:none', 'display: none'].map((style) => ({
      selector: `[style*="${style}"]`,
      format: 'skip',
    })),
    { selector: 'title', format: 'skip' },
    { selector: 'img', format: 'skip' },
    { selector: 'a', options: { hideLinkHrefIfSameAsText: true, linkBrackets: ['(', ')'] } },
    // Tables lay mail out; as tables of text they would be columns of letters.
    { selector: 'table', format: 'block' },
  ],
});

/**
 * A readable text part for mail that has only HTML, placeholders and all; null where the HTML holds no text, or is too
 * large or too deeply nested for that.
 */
export function makeTextPart(html: string): string | null {
  if (html.length > htmlLengthMax || isTooDeep(html)) return null;
  const text = toText(html).trim();
  return text === '' ? null : text;
}

function isTooDeep(html: string): boolean {
  let depth = 0;
  let isTooDeep = false;
  const parser = new Parser({
    onopentag: () => {
      depth += 1;
      if (depth <= depthMax) return;
      isTooDeep = true;
      parser.pause();
    },
    onclosetag: () => {
      depth -= 1;
    },
  });
  // In pieces: what was given is gone through even while the parser pauses.
  for (let start = 0; start < html.length && !isTooDeep; start += pieceLength) {
    parser.write(html.slice(start, start + pieceLength));
  }
  return isTooDeep;
}

const pieceLength = 4_096;
