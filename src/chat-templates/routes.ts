import {
  badRequest,
  conflict,
  notFound,
  PublicError,
  resourceNotFound,
  validationError,
} from '../platform/http/errors.ts';
import { readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf } from '../platform/http/shapes.ts';
import {
  type CreatedTemplate,
  createTemplate,
  deleteTemplate,
  templatesMax,
  type TemplateTools,
} from './keeping.ts';
import { type EditOutcome, editTemplate } from './editing.ts';
import { showTemplate } from './record.ts';
import { listQuery, templateBody, templatePatch, templateRecord } from './schema.ts';
import * as store from './store.ts';

export function chatTemplateRoutes(tools: TemplateTools): Route[] {
  const { database } = tools;
  const tag = 'Chat-app templates';
  return [
    defineRoute({
      method: 'POST',
      path: '/chatapp/templates',
      operationId: 'createChatAppTemplate',
      scope: 'chatapp:write',
      tag,
      summary: 'Create a template and submit it for review',
      description:
        'Marketing and utility templates have `components` and `examples`, authentication templates `authentication`. ' +
        'The review takes minutes, or up to 48 hours: read the template until its `status` is `approved` or `rejected`.',
      body: templateBody,
      success: { statusCode: 201, schema: templateRecord, when: 'The template, which is pending.' },
      errors: [badRequest, conflict],
      handle: async ({ caller: { organizationId }, body }) =>
        json(showTemplate(takeTemplate(await createTemplate(tools, organizationId, body)))),
    }),
    defineRoute({
      method: 'GET',
      path: '/chatapp/templates',
      operationId: 'listChatAppTemplates',
      scope: 'chatapp:read',
      tag,
      summary: 'List the templates',
      query: listQuery,
      success: { statusCode: 200, schema: listOf(templateRecord), when: 'A page of templates.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { name, language, status, category } = query;
        const rows = await database.asOrganizations([organizationId], (transaction) =>
          store.listTemplates(transaction, { organizationId, page, name, language, status, category }),
        );
        return json(toList(rows, page, showTemplate));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/chatapp/templates/:id',
      operationId: 'getChatAppTemplate',
      scope: 'chatapp:read',
      tag,
      summary: 'Read a template',
      description: 'Says what its review has come to.',
      params: idParameter,
      success: { statusCode: 200, schema: templateRecord, when: 'The template.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const row = await database.asOrganizations([organizationId], (transaction) =>
          store.findTemplate(transaction, organizationId, { id }),
        );
        if (row === null) throw resourceNotFound();
        return json(showTemplate(row));
      },
    }),
    defineRoute({
      method: 'PATCH',
      path: '/chatapp/templates/:id',
      operationId: 'updateChatAppTemplate',
      scope: 'chatapp:write',
      tag,
      summary: 'Edit a template',
      description:
        'It is reviewed again. Until the provider has taken the edit, which `edit` shows, messages are made of the ' +
        'template as it was. Only templates that are approved, rejected or paused can be edited; an approved one once ' +
        'in 24 hours, and ten times in 30 days. While a scheduled or sending campaign uses it, its placeholders keep ' +
        'their names.',
      params: idParameter,
      body: templatePatch,
      success: { statusCode: 200, schema: templateRecord, when: 'The template, with its edit.' },
      errors: [badRequest, notFound, conflict],
      handle: async ({ caller: { organizationId }, params: { id }, body }) =>
        json(showTemplate(takeEdited(await editTemplate(tools, { organizationId, id }, body)))),
    }),
    defineRoute({
      method: 'DELETE',
      path: '/chatapp/templates/:id',
      operationId: 'deleteChatAppTemplate',
      scope: 'chatapp:write',
      tag,
      summary: 'Delete a template',
      description:
        'In this language, also at the provider, which may keep the name of an approved template from being used again for 30 days. ' +
        'A template that a scheduled or sending campaign uses cannot be deleted.',
      params: idParameter,
      success: { statusCode: 200, schema: deletedOf('chatapp_template'), when: 'The template is deleted.' },
      errors: [notFound, conflict],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const outcome = await deleteTemplate(tools, { organizationId, id });
        if (outcome === 'not_found') throw resourceNotFound();
        if (outcome !== 'deleted') {
          throw new PublicError(
            conflict,
            `The template is used by the ${outcome.kind} ${outcome.id}. Change or delete that first.`,
          );
        }
        return json({ object: 'chatapp_template', id, deleted: true });
      },
    }),
  ];
}

function accountMissing(): PublicError {
  return new PublicError(
    badRequest,
    'The organization has no account at the provider of chat-app messages. Let the operator set one up with "bin/postillion chatapp credentials".',
  );
}

function takeEdited(outcome: EditOutcome): store.TemplateRow {
  switch (outcome.kind) {
    case 'edited':
      return outcome.template;
    case 'not_found':
      throw resourceNotFound();
    case 'invalid':
      throw new PublicError(validationError, outcome.issues.join(', '));
    case 'account_missing':
      throw accountMissing();
    case 'refused':
      throw new PublicError(conflict, outcome.words);
  }
}

function takeTemplate(outcome: CreatedTemplate): store.TemplateRow {
  switch (outcome.kind) {
    case 'created':
      return outcome.template;
    case 'account_missing':
      throw accountMissing();
    case 'limit_reached':
      throw new PublicError(
        badRequest,
        `The organization has ${templatesMax} chat-app templates, which is the limit. Delete one first.`,
      );
    case 'taken':
      throw new PublicError(conflict, 'There is a template of that name and language already.');
  }
}
