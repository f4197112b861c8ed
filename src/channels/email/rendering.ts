import { compileText, fillText, type Values } from '../placeholders.ts';

/** What an email says; HTML, text or both. */
export type EmailText = { subject: string | null; html: string | null; text: string | null };

/** An email may grow by its variables up to the size that a request may have at all. */
const renderedLengthMax = 30 * 1_048_576;

/**
 * Replaces the placeholders: values are escaped in HTML, and literal in subject and text. Null if any of them grows
 * past 30 MB.
 */
export function renderEmail({ subject, html, text }: EmailText, values: Values): EmailText | null {
  const rendered = [
    render(subject, values, 'none'),
    render(html, values, 'html'),
    render(text, values, 'none'),
  ];
  const [renderedSubject = null, renderedHtml = null, renderedText = null] = rendered.map(
    (part) => part.text,
  );
  if (rendered.some(({ isTooLong }) => isTooLong)) return null;
  // A value may hold line ends; a header may not.
  return {
    subject: renderedSubject?.replace(/[\r\n]+/g, ' ') ?? null,
    html: renderedHtml,
    text: renderedText,
  };
}

function render(
  text: string | null,
  values: Values,
  escape: 'html' | 'none',
): { text: string | null; isTooLong: boolean } {
  if (!text?.includes('{{')) return { text, isTooLong: false };
  const filled = fillText(compileText(text), values, escape, renderedLengthMax);
  return { text: filled, isTooLong: filled === null };
}
