import { codeUnitsMax, isLongerThan } from '../../platform/characters.ts';
import { fillOnce, type Values } from '../placeholders.ts';

/** What an email says; HTML, text or both. */
export type EmailText = { subject: string | null; html: string | null; text: string | null };

/** The most characters that a subject may have, as it is written and with its values. */
export const subjectLengthMax = 998;

/** An email may grow by its variables up to the size that a request may have at all. */
const renderedLengthMax = 30 * 1_048_576;

/**
 * `missingVariables` are names that stay as written, since no value was given: the first of them, each once. `issue`
 * is a phrase that begins with the field that has grown too long.
 */
export type EmailRendering =
  { kind: 'rendered'; email: EmailText; missingVariables: string[] } | { kind: 'too_long'; issue: string };

const fields = ['subject', 'html', 'text'] as const satisfies (keyof EmailText)[];

const limits: Readonly<Record<keyof EmailText, string>> = {
  subject: `${subjectLengthMax} characters`,
  html: '30 MB',
  text: '30 MB',
};

/** Whether the email may be longer than that with its values, as if each of its placeholders had the longest of them. */
export function mayBeLonger(written: EmailText, values: Values, lengthMax: number): boolean {
  let valueLength = 0;
  for (const value of Object.values(values)) valueLength = Math.max(valueLength, String(value).length);
  let length = 0;
  for (const text of [written.subject, written.html, written.text]) {
    length += text?.length ?? 0;
    let position = text?.indexOf('{{') ?? -1;
    while (text !== null && position !== -1 && length <= lengthMax) {
      length += valueLength;
      position = text.indexOf('{{', position + 2);
    }
  }
  return length > lengthMax;
}

/** Replaces the placeholders: values are escaped in HTML and in links, and literal in other words of subject and text. */
export function renderEmail(written: EmailText, values: Values): EmailRendering {
  const missing = new Set<string>();
  const fill = (part: string, form: 'html' | 'text', lengthMax: number) => {
    const filled = fillOnce(part, values, form, lengthMax);
    for (const name of filled.missing) missing.add(name);
    return filled.text;
  };
  const { subject, html, text } = written;
  const email: EmailText = {
    subject: subject && tidySubject(fill(subject, 'text', codeUnitsMax(subjectLengthMax))),
    html: html && fill(html, 'html', renderedLengthMax),
    text: text && fill(text, 'text', renderedLengthMax),
  };
  const grown = fields.find((field) => written[field] !== null && email[field] === null);
  return grown === undefined
    ? { kind: 'rendered', email, missingVariables: [...missing] }
    : {
        kind: 'too_long',
        issue: `${grown} must be at most ${limits[grown]} with its variables replaced`,
      };
}

/** Null if it has grown too long. */
function tidySubject(filled: string | null): string | null {
  if (filled === null || isLongerThan(filled, subjectLengthMax)) return null;
  // A value may hold line ends; a header may not.
  return filled.replace(/[\r\n]+/g, ' ');
}
