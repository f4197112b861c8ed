import { Parser } from 'htmlparser2';
import { escapeHtml } from '../placeholders.ts';

/** What comes before the body is read no further than this; HTML without a body begins with it. */
const headLengthMax = 262_144;

/**
 * HTML with a preview text: what mail clients show beside the subject, and nobody sees in the message itself. Its
 * placeholders stay placeholders. The spaces behind it keep clients from filling the line with what comes next.
 */
export function insertPreviewText(html: string, previewText: string): string {
  const start = findBodyStart(html);
  return `${html.slice(0, start)}<div style="display:none;overflow:hidden;max-height:0;mso-hide:all">${escapeHtml(previewText)}${'&#8203;&nbsp;'.repeat(60)}</div>${html.slice(start)}`;
}

/** Just behind the opening tag of the body, or 0. */
function findBodyStart(html: string): number {
  let start = 0;
  const parser = new Parser({
    onopentag: (name) => {
      if (name !== 'body' || start > 0) return;
      start = parser.endIndex + 1;
      parser.pause();
    },
  });
  for (let from = 0; from < Math.min(html.length, headLengthMax) && start === 0; from += pieceLength) {
    parser.write(html.slice(from, from + pieceLength));
  }
  return start;
}

const pieceLength = 4_096;
