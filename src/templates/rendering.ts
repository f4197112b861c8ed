import type { Static } from 'typebox';
import {
  type EmailRendering,
  type EmailText,
  insertPreviewText,
  mayBeLonger,
  renderEmail,
} from '../channels/email/email.ts';
import { describeForeignSyntax } from '../channels/foreign-syntax.ts';
import { listPlaceholders, type Values } from '../channels/placeholders.ts';
import {
  inlineRunner,
  largeBodyBytesMin,
  type TaskRunner,
  type ThreadTask,
} from '../platform/http/body-threads.ts';
import type { renderedRecord } from './schema.ts';
import type { TemplateContent } from './store.ts';

/** The email that is made of a template, before its placeholders are replaced: the preview text is in its HTML. */
export function toEmailText({ subject, html, text, previewText }: TemplateContent): EmailText {
  return {
    subject,
    html: html === null || previewText === null ? html : insertPreviewText(html, previewText),
    text,
  };
}

/** What an email of a template would say, as the JSON of `POST /templates/:id/render`, which can have 30 MB. */
export type RenderedTemplate =
  { kind: 'rendered'; json: Uint8Array } | Extract<EmailRendering, { kind: 'too_long' }>;

type RenderingInput = { content: TemplateContent; values: Values };

export const renderTemplateTask: ThreadTask<RenderingInput, RenderedTemplate> = {
  name: 'render template',
  run: ({ content, values }) => {
    const rendering = renderEmail(toEmailText(content), values);
    if (rendering.kind === 'too_long') return rendering;
    const record: Static<typeof renderedRecord> = {
      ...rendering.email,
      missing_variables: listVariables(content).filter((name) => !Object.hasOwn(values, name)),
      warnings: describeForeignSyntax([content.subject, content.previewText, content.html, content.text]),
    };
    return { kind: 'rendered', json: new TextEncoder().encode(JSON.stringify(record)) };
  },
};

/** In the thread where the values make the template large. */
export function renderTemplate(runner: TaskRunner, input: RenderingInput): Promise<RenderedTemplate> {
  const isLarge = mayBeLonger(input.content, input.values, largeBodyBytesMin);
  return (isLarge ? runner : inlineRunner).run(renderTemplateTask, input);
}

/** More names than that are no content. */
export const variablesMax = 1_000;

/** The names of all placeholders, each once, in the order of their appearance; one more than `variablesMax` at most. */
export function listVariables({ subject, previewText, html, text }: TemplateContent): string[] {
  const texts = [subject, previewText, html, text].filter((part) => part !== null);
  return listPlaceholders(texts, variablesMax + 1);
}
