import { type EmailText, insertPreviewText, renderEmail } from '../channels/email/email.ts';
import { compileText, listPlaceholders, type Values } from '../channels/placeholders.ts';
import type { TemplateContent } from './store.ts';

/** The email that is made of a template, before its placeholders are replaced: the preview text is in its HTML. */
export function toEmailText({ subject, html, text, previewText }: TemplateContent): EmailText {
  return {
    subject,
    html: html === null || previewText === null ? html : insertPreviewText(html, previewText),
    text,
  };
}

export type RenderedTemplate = EmailText & { missingVariables: string[] };

/** As an email would have it, and the names that no value was given for; null if it grows past 30 MB. */
export function renderTemplate(content: TemplateContent, values: Values): RenderedTemplate | null {
  const rendered = renderEmail(toEmailText(content), values);
  if (rendered === null) return null;
  const missingVariables = listVariables(content).filter((name) => !Object.hasOwn(values, name));
  return { ...rendered, missingVariables };
}

/** The names of all placeholders, each once, in the order of their appearance. */
export function listVariables({ subject, previewText, html, text }: TemplateContent): string[] {
  const names = [subject, previewText, html, text].flatMap((part) =>
    part === null ? [] : listPlaceholders(compileText(part)),
  );
  return [...new Set(names)];
}
