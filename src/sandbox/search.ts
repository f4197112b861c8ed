import { toSearchKey } from '../platform/characters.ts';
import { Parser } from 'htmlparser2';
import type { ParsedSource } from './parsed-source.ts';

/** Text of one message that is searched: more than any person writes, and little enough to look through thousands. */
const searchedLengthMax = 200_000;

/** Whether a text stands in the recipient, the sender, the subject or the content of a message, in whatever case. */
export function isMatch(
  search: string,
  message: { recipient: string; sender: string },
  { from, subject, text, html }: Pick<ParsedSource, 'from' | 'subject' | 'text' | 'html'>,
): boolean {
  const wanted = toSearchKey(search);
  const isIn = (part: string | null) =>
    part !== null && toSearchKey(part.slice(0, searchedLengthMax)).includes(wanted);
  if ([message.recipient, from ?? message.sender, subject, text].some(isIn)) return true;
  return html !== null && isIn(textOf(html.slice(0, searchedLengthMax)));
}

/** What one reads of HTML, roughly: without its tags, styles and scripts. */
function textOf(html: string): string {
  let text = '';
  const skipped: string[] = [];
  const parser = new Parser({
    onopentagname: (name) => {
      if (name === 'style' || name === 'script') skipped.push(name);
    },
    onclosetag: (name) => {
      if (name === skipped.at(-1)) skipped.pop();
    },
    ontext: (piece) => {
      if (skipped.length === 0) text += piece;
    },
  });
  parser.end(html);
  return text;
}
