import {
  type EmailRendering,
  type EmailText,
  insertPreviewText,
  renderEmail,
} from '../channels/email/email.ts';
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

export type TemplateRendering =
  { kind: 'rendered'; template: RenderedTemplate } | Extract<EmailRendering, { kind: 'too_long' }>;

/** As an email would have it, and the names that no value was given for. */
export function renderTemplate(content: TemplateContent, values: Values): TemplateRendering {
  const rendering = renderEmail(toEmailText(content), values);
  if (rendering.kind === 'too_long') return rendering;
  const missingVariables = listVariables(content).filter((name) => !Object.hasOwn(values, name));
  return { kind: 'rendered', template: { ...rendering.email, missingVariables } };
}

/** The names of all placeholders, each once, in the order of their appearance. */
export function listVariables({ subject, previewText, html, text }: TemplateContent): string[] {
  const names = [subject, previewText, html, text].flatMap((part) =>
    part === null ? [] : listPlaceholders(compileText(part)),
  );
  return [...new Set(names)];
}
