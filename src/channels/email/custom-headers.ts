import { breakPattern } from './headers.ts';

/** Header fields that an email may be sent with besides its own. */

/** With a blank and a colon after the longest name, what one line can hold: nothing has to be folded that cannot be. */
const valueLengthMax = 900;
const nameLengthMax = 76;

/** A long thread, in full: mail clients keep all of it, and programs hand on what they have got. */
const referencesLengthMax = 20_000;

/**
 * Fields whose value is a structure of its own (RFC 5322 §3.6.4, RFC 2369, RFC 2919, RFC 8058, RFC 3834, RFC 2156): in
 * encoded words it would say nothing.
 */
const structuredFields: ReadonlySet<string> = new Set(
  [
    'in-reply-to references auto-submitted importance priority sensitivity precedence thread-index',
    'list-archive list-help list-id list-owner list-post list-subscribe list-unsubscribe list-unsubscribe-post',
  ].flatMap((line) => line.split(' ')),
);

/** Fields whose value is text. */
const textFields: ReadonlySet<string> = new Set(['comments', 'keywords', 'organization', 'thread-topic']);

const ownFieldPattern = /^x-[a-z0-9_-]+$/;

export type HeaderIssue = { name: string; issue: string };

/** What is wrong with these header fields, each with a phrase that follows its name. */
export function findHeaderIssues(headers: Readonly<Record<string, string>>): HeaderIssue[] {
  const seen = new Set<string>();
  return Object.entries(headers).flatMap(([name, value]) => {
    const issue = findIssue(name, value, seen);
    return issue === null ? [] : [{ name, issue }];
  });
}

function findIssue(name: string, value: string, seen: Set<string>): string | null {
  if (name.length > nameLengthMax) return `must have a name of at most ${nameLengthMax} characters`;
  const lowered = name.toLowerCase();
  if (!isAllowed(lowered)) return 'is not a header that can be set';
  if (seen.size === seen.add(lowered).size) return 'must not be given twice';
  const lengthMax = lowered === 'references' ? referencesLengthMax : valueLengthMax;
  if (value.length > lengthMax) return `must have at most ${lengthMax} characters`;
  if (value.trim() === '' || breakPattern.test(value)) return 'must be a line of text that is not blank';
  if (structuredFields.has(lowered) && !/^[ -~]*$/.test(value)) return 'must be ASCII';
  if (value.split(' ').some((word) => word.length > valueLengthMax))
    return `must have a blank at least every ${valueLengthMax} characters`;
  return null;
}

/**
 * As an email carries them. Of a long `References` the message that began the thread stays, and the newest ones: by them
 * readers find where an answer belongs (RFC 5322 §3.6.4), and the whole fits one line for whoever unfolds it.
 */
export function shortenReferences(headers: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [
      name,
      name.toLowerCase() === 'references' && value.length > valueLengthMax ? cutMiddle(value) : value,
    ]),
  );
}

function cutMiddle(value: string): string {
  const [first = '', ...others] = value.split(' ').filter((word) => word !== '');
  let length = first.length;
  const isDropped = (word: string) => (length += 1 + word.length) > valueLengthMax;
  return [first, ...others.slice(others.findLastIndex(isDropped) + 1)].join(' ');
}

function isAllowed(lowered: string): boolean {
  return structuredFields.has(lowered) || textFields.has(lowered) || ownFieldPattern.test(lowered);
}
