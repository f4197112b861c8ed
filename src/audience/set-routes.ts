import { type Static, type TObject, Type } from 'typebox';
import { badRequest, conflict, notFound, PublicError, resourceNotFound } from '../platform/http/errors.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf } from '../platform/http/shapes.ts';
import type { AudienceRouteTools } from './route-tools.ts';
import {
  contactIdsBody,
  listBody,
  listPatch,
  listRecord,
  membershipChange,
  tagBody,
  tagPatch,
  tagRecord,
} from './schema.ts';
import { changeMembers, createSet, deleteSet, updateSet } from './sets.ts';
import * as store from './set-store.ts';

/** Lists and tags are the same thing to a program, and are told apart by people. */
export function setRoutes(tools: AudienceRouteTools): Route[] {
  return [
    ...routesOf(tools, {
      kind: 'list',
      noun: 'List',
      path: '/lists',
      tag: 'Lists',
      body: listBody,
      patch: listPatch,
      record: listRecord,
      show: (row): Static<typeof listRecord> => ({ ...showSet(row), description: row.description }),
      membership: {
        join: { operationId: 'addContactsToList', summary: 'Add contacts to a list' },
        leave: { operationId: 'removeContactsFromList', summary: 'Remove contacts from a list' },
      },
    }),
    ...routesOf(tools, {
      kind: 'tag',
      noun: 'Tag',
      path: '/tags',
      tag: 'Tags',
      body: tagBody,
      patch: tagPatch,
      record: tagRecord,
      show: (row): Static<typeof tagRecord> => showSet(row),
      membership: {
        join: { operationId: 'addTagToContacts', summary: 'Give contacts a tag' },
        leave: { operationId: 'removeTagFromContacts', summary: 'Remove a tag from contacts' },
      },
    }),
  ];
}

function showSet(row: store.SetRow) {
  return {
    id: row.id,
    name: row.name,
    contact_count: row.contact_count,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

type Noun = {
  kind: 'list' | 'tag';
  /** In names of operations. */
  noun: 'List' | 'Tag';
  path: string;
  tag: string;
  body: TObject;
  patch: TObject;
  record: TObject;
  show: (row: store.SetRow) => object;
  membership: Record<'join' | 'leave', { operationId: string; summary: string }>;
};

function routesOf(tools: AudienceRouteTools, noun: Noun): Route[] {
  const { database } = tools;
  const { kind, path, tag, record, show } = noun;
  return [
    defineRoute({
      method: 'POST',
      path,
      operationId: `create${noun.noun}`,
      scope: 'contacts:write',
      tag,
      summary: `Create a ${kind}`,
      body: noun.body,
      success: { statusCode: 201, schema: record, when: `The ${kind}.` },
      errors: [conflict],
      handle: async ({ caller: { organizationId }, body }) => {
        const { name, description = null } = body as { name: string; description?: string | null };
        const set = await createSet(tools, { organizationId, kind, name, description });
        if (set === 'taken') throw taken(kind);
        return json(show(set));
      },
    }),
    defineRoute({
      method: 'GET',
      path,
      operationId: `list${noun.noun}s`,
      scope: 'contacts:read',
      tag,
      summary: `List the ${kind}s`,
      query: Type.Object(
        {
          ...paginationParameters,
          search: Type.Optional(
            Type.String({ minLength: 1, maxLength: 255, description: 'Part of the name, ignoring case.' }),
          ),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(record), when: `A page of ${kind}s.` },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { search } = query;
        const rows = await database.asOrganizations([organizationId], (transaction) =>
          store.listSets(transaction, {
            organizationId,
            kind,
            page,
            ...(search !== undefined && { search }),
          }),
        );
        return json(toList(rows, page, show));
      },
    }),
    defineRoute({
      method: 'GET',
      path: `${path}/:id`,
      operationId: `get${noun.noun}`,
      scope: 'contacts:read',
      tag,
      summary: `Read a ${kind}`,
      params: idParameter,
      success: { statusCode: 200, schema: record, when: `The ${kind}.` },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const row = await database.asOrganizations([organizationId], (transaction) =>
          store.findSet(transaction, { organizationId, kind, id }),
        );
        if (row === null) throw resourceNotFound();
        return json(show(row));
      },
    }),
    defineRoute({
      method: 'PATCH',
      path: `${path}/:id`,
      operationId: `update${noun.noun}`,
      scope: 'contacts:write',
      tag,
      summary: `Change a ${kind}`,
      params: idParameter,
      body: noun.patch,
      success: { statusCode: 200, schema: record, when: `The changed ${kind}.` },
      errors: [notFound, conflict],
      handle: async ({ caller: { organizationId }, params: { id }, body }) => {
        const set = await updateSet(tools, { organizationId, kind, id, patch: body });
        if (set === 'not_found') throw resourceNotFound();
        if (set === 'taken') throw taken(kind);
        return json(show(set));
      },
    }),
    defineRoute({
      method: 'DELETE',
      path: `${path}/:id`,
      operationId: `delete${noun.noun}`,
      scope: 'contacts:write',
      tag,
      summary: `Delete a ${kind}`,
      description:
        'Its contacts are not deleted. If a segment or a scheduled campaign uses it, it cannot be deleted.',
      params: idParameter,
      success: { statusCode: 200, schema: deletedOf(kind), when: `The ${kind} is deleted.` },
      errors: [notFound, conflict],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const outcome = await deleteSet(tools, { organizationId, kind, id });
        if (outcome === 'not_found') throw resourceNotFound();
        if (outcome !== 'deleted') {
          throw new PublicError(
            conflict,
            `The ${kind} is used by the ${outcome.kind} ${outcome.id}. Change or delete that first.`,
          );
        }
        tools.onDeleted();
        return json({ object: kind, id, deleted: true });
      },
    }),
    ...(['join', 'leave'] as const).map((change) =>
      defineRoute({
        method: change === 'join' ? 'POST' : 'DELETE',
        path: `${path}/:id/contacts`,
        operationId: noun.membership[change].operationId,
        scope: 'contacts:write',
        tag,
        summary: noun.membership[change].summary,
        description: 'At most 1,000 contacts at a time. Repeating the request changes nothing.',
        params: idParameter,
        body: contactIdsBody,
        success: {
          statusCode: 200,
          schema: membershipChange,
          when: 'The number of contacts that were added or removed.',
        },
        errors: [notFound],
        handle: async ({ caller: { organizationId }, params: { id }, body }) => {
          const contactIds = body.contact_ids;
          const outcome = await changeMembers(tools, { organizationId, kind, id, contactIds, change });
          if (outcome === 'not_found') throw resourceNotFound();
          if (outcome.changed > 0) tools.onChanged();
          return json({
            object: 'membership_change',
            changed: outcome.changed,
            unchanged: outcome.unchanged,
            not_found_ids: outcome.notFoundIds,
          });
        },
      }),
    ),
  ];
}

function taken(kind: 'list' | 'tag'): PublicError {
  return new PublicError(conflict, `There is a ${kind} of that name already.`);
}
