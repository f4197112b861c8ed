import type { AlertKind } from './kinds.ts';
import { type AlertSubject, type AlertWords, wordsOf } from './words.ts';

/** What an alert has to tell: all that has happened of a kind since the last one. */
export type AlertContent = {
  kind: AlertKind;
  organization: { id: string; name: string };
  /** How much has happened, and since when. */
  count: number;
  since: Date;
  /** The newest of it, the newest first. One at least. */
  newest: readonly { at: Date; subject: AlertSubject }[];
};

/** As fields of an email that is sent: every text of ours, and everything else in variables, which are escaped by their place. */
export type AlertMail = {
  subject: string;
  text: string;
  html: string;
  variables: Record<string, string>;
};

/** A subject that is too long is refused, and this alert is to be told. */
const subjectLettersMax = 200;

export function writeAlert(content: AlertContent): AlertMail {
  const paragraphs = listParagraphs(content);
  const names = paragraphs.map((lines, paragraph) => lines.map((_, line) => `p${paragraph}_${line}`));
  const placeholders = names.map((lines) => lines.map((name) => `{{${name}}}`));
  const [title = ''] = paragraphs[0] ?? [];
  return {
    subject: '{{title}}',
    text: placeholders.map((lines) => lines.join('\n')).join('\n\n'),
    html: placeholders.map((lines) => `<p>${lines.join('<br>\n')}</p>`).join('\n'),
    variables: {
      title: [...title].slice(0, subjectLettersMax).join(''),
      ...Object.fromEntries(
        paragraphs.flatMap((lines, paragraph) =>
          lines.map((line, place) => [names[paragraph]?.[place] ?? '', line] as const),
        ),
      ),
    },
  };
}

function listParagraphs({ kind, organization, count, since, newest }: AlertContent): string[][] {
  const [latest, ...earlier] = newest.map(({ at, subject }) => ({ at, words: wordsOf[kind](subject) }));
  if (latest === undefined) throw new Error('an alert tells of something');
  const more = count - 1;
  const { headline, details, advice } = latest.words;
  return [
    [more === 0 ? headline : `${headline}, and ${more} more`],
    [...details, `At: ${showInstant(latest.at)}`],
    [advice],
    ...(more === 0 ? [] : [listEarlier(earlier, { more, since })]),
    [
      `${organization.name} (${organization.id})`,
      'Whom such alerts are sent to: GET /v1/organization/alerts',
    ],
  ];
}

function listEarlier(
  earlier: readonly { at: Date; words: AlertWords }[],
  { more, since }: { more: number; since: Date },
): string[] {
  const unlisted = more - earlier.length;
  return [
    `${more} more since ${showInstant(since)}:`,
    ...earlier.map(({ at, words }) => `${showInstant(at)}  ${words.headline}`),
    ...(unlisted > 0 ? [`and ${unlisted} before these`] : []),
  ];
}

function showInstant(at: Date): string {
  return `${at.toISOString().slice(0, 16).replace('T', ' ')} UTC`;
}
