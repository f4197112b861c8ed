import { findHolder, type Holder } from '../audience/audience.ts';
import { makeTextPart } from '../channels/email/email.ts';
import type { Values } from '../channels/placeholders.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { TaskRunner } from '../platform/http/body-threads.ts';
import type { NewId } from '../platform/ids.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { type RenderedTemplate, renderTemplate } from './rendering.ts';
import { checkContent } from './rules.ts';
import type { TemplateBody, TemplatePatch } from './schema.ts';
import { loadContent } from './template-cache.ts';
import * as store from './store.ts';

export { openGallery } from './gallery.ts';
export {
  createTemplateCache,
  type EmailTemplate,
  type PreparedTemplate,
  type TemplateCache,
} from './template-cache.ts';
export { listVariables, toEmailText, variablesMax } from './rendering.ts';
export { templateRules } from './rules.ts';
export { templateFormats } from './schema.ts';
export { isTemplateUnchanged, type KeptVersion, type TemplateContent } from './store.ts';

export type TemplateTools = { database: Database; clock: Clock; newId: NewId };

export type SavedTemplate =
  { kind: 'saved'; template: store.TemplateRow } | { kind: 'invalid'; issue: string } | { kind: 'not_found' };

export async function createTemplate(
  tools: TemplateTools,
  organizationId: string,
  body: TemplateBody,
  sourceGalleryTemplateId: string | null = null,
): Promise<SavedTemplate> {
  const content = {
    subject: body.subject ?? null,
    html: body.html ?? null,
    text: body.text ?? null,
    previewText: body.preview_text ?? null,
  };
  const checked = checkContent(content);
  if (checked.kind === 'invalid') return checked;
  const template = await tools.database.asOrganizations([organizationId], (transaction) =>
    store.insertTemplate(transaction, {
      organizationId,
      id: tools.newId(),
      name: body.name,
      ...content,
      textOfHtml: makeTextOfHtml(content),
      variables: checked.variables,
      sourceGalleryTemplateId,
      at: now(tools.clock),
    }),
  );
  return { kind: 'saved', template };
}

/** What is not given stays as it is; null removes it. */
export async function updateTemplate(
  tools: TemplateTools,
  template: store.TemplateKey,
  patch: TemplatePatch,
): Promise<SavedTemplate> {
  return tools.database.asOrganizations(
    [template.organizationId],
    async (transaction): Promise<SavedTemplate> => {
      const present = await store.findTemplate(transaction, template, { isLocked: true });
      if (present === null) return { kind: 'not_found' };
      const kept = (given: string | null | undefined, value: string | null) =>
        given === undefined ? value : given;
      const content = {
        subject: kept(patch.subject, present.subject),
        html: kept(patch.html, present.html),
        text: kept(patch.text, present.text),
        previewText: kept(patch.preview_text, present.preview_text),
      };
      const checked = checkContent(content);
      if (checked.kind === 'invalid') return checked;
      const updated = await store.updateTemplate(transaction, {
        ...template,
        name: patch.name ?? present.name,
        ...content,
        textOfHtml: makeTextOfHtml(content),
        variables: checked.variables,
        at: now(tools.clock),
      });
      return updated === null ? { kind: 'not_found' } : { kind: 'saved', template: updated };
    },
  );
}

function makeTextOfHtml({ html, text }: store.TemplateContent): string | null {
  return html === null || text !== null ? null : makeTextPart(html);
}

/** As it was written, and kept from being deleted until the transaction ends. */
export async function keepTemplate(
  transaction: Transaction,
  template: store.TemplateKey,
): Promise<store.TemplateContent | null> {
  return store.keepContent(transaction, template);
}

/** What was accepted goes on without it; what is still to be sent with it holds it. */
export async function deleteTemplate(
  database: Database,
  template: store.TemplateKey,
): Promise<'deleted' | 'not_found' | Holder> {
  return database.asOrganizations([template.organizationId], async (transaction) => {
    if (!(await store.lockTemplate(transaction, template))) return 'not_found';
    const holder = await findHolder(transaction, template);
    if (holder !== null) return holder;
    await store.deleteTemplate(transaction, template);
    return 'deleted';
  });
}

/** As an email with these values would have it. */
export async function previewTemplate(
  { database, runner }: { database: Database; runner: TaskRunner },
  template: store.TemplateKey,
  values: Values,
): Promise<RenderedTemplate | 'not_found'> {
  const content = await loadContent(database, template);
  return content === null ? 'not_found' : renderTemplate(runner, { content, values });
}
