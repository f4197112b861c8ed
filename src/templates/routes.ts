import { Type } from 'typebox';
import { describeForeignSyntax } from '../channels/foreign-syntax.ts';
import {
  badRequest,
  conflict,
  notFound,
  payloadTooLarge,
  PublicError,
  resourceNotFound,
  validationError,
} from '../platform/http/errors.ts';
import type { TaskRunner } from '../platform/http/body-threads.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf } from '../platform/http/shapes.ts';
import { type GalleryRouteTools, galleryRoutes } from './gallery-routes.ts';
import { renderTemplateTask } from './rendering.ts';
import {
  listedTemplateRecord,
  type ListedTemplateRecord,
  renderBody,
  renderedRecord,
  templateBody,
  templatePatch,
  type TemplateRecord,
  templateRecord,
} from './schema.ts';
import * as store from './store.ts';
import {
  createTemplate,
  deleteTemplate,
  previewTemplate,
  type SavedTemplate,
  type TemplateTools,
  updateTemplate,
} from './templates.ts';

export { galleryPages } from './page-routes.ts';

/** 2 MB of HTML and what JSON makes of its quotes and line ends. */
const bodyBytesMax = 3 * 1_048_576;

export const templateTasks = [renderTemplateTask];

export function templateRoutes(tools: GalleryRouteTools & { runner: TaskRunner }): Route[] {
  return [...galleryRoutes(tools), ...customRoutes(tools)];
}

function customRoutes(tools: TemplateTools & { runner: TaskRunner }): Route[] {
  const { database } = tools;
  const tag = 'Templates';
  return [
    defineRoute({
      method: 'POST',
      path: '/templates',
      operationId: 'createTemplate',
      scope: 'templates:write',
      tag,
      summary: 'Create a template',
      description: 'Needs `html`, `text` or both.',
      body: templateBody,
      bodyBytesMax,
      success: { statusCode: 201, schema: templateRecord, when: 'The template.' },
      errors: [payloadTooLarge],
      handle: async ({ caller: { organizationId }, body }) =>
        json(showTemplate(takeTemplate(await createTemplate(tools, organizationId, body)))),
    }),
    defineRoute({
      method: 'GET',
      path: '/templates',
      operationId: 'listTemplates',
      scope: 'templates:read',
      tag,
      summary: 'List the templates',
      query: Type.Object(
        {
          ...paginationParameters,
          search: Type.Optional(
            Type.String({ minLength: 1, maxLength: 100, description: 'Part of the name, ignoring case.' }),
          ),
        },
        { additionalProperties: false },
      ),
      success: {
        statusCode: 200,
        schema: listOf(listedTemplateRecord),
        when: 'A page of templates, without their bodies.',
      },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { search } = query;
        const rows = await database.asOrganizations([organizationId], (transaction) =>
          store.listTemplates(transaction, {
            organizationId,
            page,
            ...(search !== undefined && { search }),
          }),
        );
        return json(toList(rows, page, showListed));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/templates/:id',
      operationId: 'getTemplate',
      scope: 'templates:read',
      tag,
      summary: 'Read a template',
      params: idParameter,
      success: { statusCode: 200, schema: templateRecord, when: 'The template.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const row = await database.asOrganizations([organizationId], (transaction) =>
          store.findTemplate(transaction, { organizationId, id }),
        );
        if (row === null) throw resourceNotFound();
        return json(showTemplate(row));
      },
    }),
    defineRoute({
      method: 'PATCH',
      path: '/templates/:id',
      operationId: 'updateTemplate',
      scope: 'templates:write',
      tag,
      summary: 'Change a template',
      description:
        'Fields that are not given stay unchanged; null removes a value. Emails that were accepted do not change.',
      params: idParameter,
      body: templatePatch,
      bodyBytesMax,
      success: { statusCode: 200, schema: templateRecord, when: 'The changed template.' },
      errors: [notFound, payloadTooLarge],
      handle: async ({ caller: { organizationId }, params: { id }, body }) =>
        json(showTemplate(takeTemplate(await updateTemplate(tools, { organizationId, id }, body)))),
    }),
    defineRoute({
      method: 'DELETE',
      path: '/templates/:id',
      operationId: 'deleteTemplate',
      scope: 'templates:write',
      tag,
      summary: 'Delete a template',
      description: 'A template that a scheduled or sending campaign uses cannot be deleted.',
      params: idParameter,
      success: { statusCode: 200, schema: deletedOf('template'), when: 'The template is deleted.' },
      errors: [notFound, conflict],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const outcome = await deleteTemplate(database, { organizationId, id });
        if (outcome === 'not_found') throw resourceNotFound();
        if (outcome !== 'deleted') {
          throw new PublicError(
            conflict,
            `The template is used by the ${outcome.kind} ${outcome.id}. Change or delete that first.`,
          );
        }
        return json({ object: 'template', id, deleted: true });
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/templates/:id/render',
      operationId: 'renderTemplate',
      addsStorage: false,
      scope: 'templates:read',
      tag,
      summary: 'Show a template with its variables replaced',
      description: 'Placeholders without a value are left as written, as in an email.',
      params: idParameter,
      body: renderBody,
      bodyBytesMax,
      success: { statusCode: 200, schema: renderedRecord, when: 'The content with its variables replaced.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id }, body }) => {
        const rendered = await previewTemplate(tools, { organizationId, id }, body.variables ?? {});
        if (rendered === 'not_found') throw resourceNotFound();
        if (rendered.kind === 'too_long') throw new PublicError(validationError, rendered.issue);
        return { kind: 'written', json: rendered.json };
      },
    }),
  ];
}

function takeTemplate(outcome: SavedTemplate): store.TemplateRow {
  switch (outcome.kind) {
    case 'saved':
      return outcome.template;
    case 'invalid':
      throw new PublicError(validationError, outcome.issue);
    case 'not_found':
      throw resourceNotFound();
  }
}

function showListed(row: store.ListedTemplateRow): ListedTemplateRecord {
  return {
    id: row.id,
    name: row.name,
    subject: row.subject,
    preview_text: row.preview_text,
    variables: row.variables,
    source_gallery_template_id: row.source_gallery_template_id,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

function showTemplate(row: store.TemplateRow): TemplateRecord {
  const { subject, preview_text: previewText, html, text } = row;
  return {
    ...showListed(row),
    html,
    text,
    warnings: describeForeignSyntax([subject, previewText, html, text]),
  };
}
