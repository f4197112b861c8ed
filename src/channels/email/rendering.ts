import { codeUnitsMax, isLongerThan } from '../../platform/characters.ts';
import {
  type CompiledText,
  compileText,
  fillOnce,
  fillText,
  listMissing,
  type Values,
} from '../placeholders.ts';

/** What an email says; HTML, text or both. */
export type EmailText = { subject: string | null; html: string | null; text: string | null };

/** The same, cut at its placeholders: for what is filled many times. */
export type CompiledEmailText = Readonly<Record<keyof EmailText, CompiledText | null>>;

const forms = { subject: 'text', html: 'html', text: 'text' } as const satisfies Record<
  keyof EmailText,
  'html' | 'text'
>;

export function compileEmailText({ subject, html, text }: EmailText): CompiledEmailText {
  return {
    subject: subject ? compileText(subject, forms.subject) : null,
    html: html ? compileText(html, forms.html) : null,
    text: text ? compileText(text, forms.text) : null,
  };
}

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

/**
 * Replaces the placeholders: values are escaped in HTML and in links, and literal in other words of subject and text.
 * `compiled` has those parts of the email that were cut before; where the places of placeholders are read anew, most of
 * the time is spent on that.
 */
export function renderEmail(
  written: EmailText,
  values: Values,
  compiled: Partial<CompiledEmailText> = {},
): EmailRendering {
  const missing = new Set<string>();
  const fill = (field: keyof EmailText, lengthMax: number) => {
    const [part, cut] = [written[field], compiled[field] ?? null];
    if (!part) return part;
    const filled =
      cut === null
        ? fillOnce(part, values, forms[field], lengthMax)
        : { text: fillText(cut, values, lengthMax), missing: listMissing(cut, values) };
    for (const name of filled.missing) missing.add(name);
    return filled.text;
  };
  const { subject } = written;
  const email: EmailText = {
    subject: subject && tidySubject(fill('subject', codeUnitsMax(subjectLengthMax))),
    html: fill('html', renderedLengthMax),
    text: fill('text', renderedLengthMax),
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
