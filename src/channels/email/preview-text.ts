import { Parser } from 'htmlparser2';
import { escapeHtml } from '../placeholders.ts';

/** What comes before the body is read no further than this; HTML without a body begins with it. */
const headLengthMax = 262_144;

/**
 * HTML with a preview text: what mail clients show beside the subject, and hide in the message itself. Its
 * placeholders stay placeholders. The spaces after it keep clients from filling the line with what comes next.
 */
export function insertPreviewText(html: string, previewText: string): string {
  const start = findBodyStart(html);
  return `${html.slice(0, start)}<div style="display:none;overflow:hidden;max-height:0;mso-hide:all">${escapeHtml(previewText)}${'&#8203;&nbsp;'.repeat(60)}</div>${html.slice(start)}`;
}

/**
 * Just after the opening tag of the body. The tag may be left out: then after what comes before a body, because what
 * stands before a doctype makes clients lay the message out as they did last century.
 */
function findBodyStart(html: string): number {
  let start = 0;
  let isFound = false;
  const parser = new Parser({
    onprocessinginstruction: () => {
      start = parser.endIndex + 1;
    },
    onopentag: (name) => {
      if (name === 'html' || name === 'body') start = parser.endIndex + 1;
      isFound = !beforeBody.has(name);
      if (isFound) parser.pause();
    },
    onclosetag: (name, isImplied) => {
      if (name === 'head' && !isImplied) start = parser.endIndex + 1;
    },
  });
  for (let from = 0; from < Math.min(html.length, headLengthMax) && !isFound; from += pieceLength) {
    parser.write(html.slice(from, from + pieceLength));
  }
  return start;
}

const beforeBody = new Set(['html', 'head', 'title', 'meta', 'link', 'style', 'base', 'script']);

const pieceLength = 4_096;
