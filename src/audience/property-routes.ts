import { Type } from 'typebox';
import {
  badRequest,
  conflict,
  notFound,
  PublicError,
  resourceNotFound,
  validationError,
} from '../platform/http/errors.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf } from '../platform/http/shapes.ts';
import { createProperty, deleteProperty, updateProperty } from './properties.ts';
import * as store from './property-store.ts';
import type { AudienceRouteTools } from './route-tools.ts';
import { propertyBody, propertyPatch, type PropertyRecord, propertyRecord } from './schema.ts';

export function propertyRoutes(tools: AudienceRouteTools): Route[] {
  const { database } = tools;
  const tag = 'Properties';
  return [
    defineRoute({
      method: 'POST',
      path: '/properties',
      operationId: 'createProperty',
      scope: 'contacts:write',
      tag,
      summary: 'Define a property of contacts',
      body: propertyBody,
      success: { statusCode: 201, schema: propertyRecord, when: 'The property.' },
      errors: [conflict],
      handle: async ({ caller: { organizationId }, body }) => {
        const outcome = await createProperty(tools, organizationId, body);
        switch (outcome.kind) {
          case 'created':
            return json(showProperty(outcome.property));
          case 'taken':
            throw new PublicError(conflict, 'There is a property with that key already.');
          case 'too_many':
            throw new PublicError(
              conflict,
              `An organization has at most ${store.propertiesMax} properties. Delete one first.`,
            );
        }
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/properties',
      operationId: 'listProperties',
      scope: 'contacts:read',
      tag,
      summary: 'List the properties of contacts',
      query: Type.Object(
        {
          ...paginationParameters,
          search: Type.Optional(
            Type.String({ minLength: 1, maxLength: 255, description: 'Part of the key or of the name.' }),
          ),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(propertyRecord), when: 'A page of properties.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { search } = query;
        const rows = await database.asOrganizations([organizationId], (transaction) =>
          store.listProperties(transaction, {
            organizationId,
            page,
            ...(search !== undefined && { search }),
          }),
        );
        return json(toList(rows, page, showProperty));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/properties/:id',
      operationId: 'getProperty',
      scope: 'contacts:read',
      tag,
      summary: 'Read a property',
      params: idParameter,
      success: { statusCode: 200, schema: propertyRecord, when: 'The property.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const row = await database.asOrganizations([organizationId], (transaction) =>
          store.findProperty(transaction, { organizationId, id }),
        );
        if (row === null) throw resourceNotFound();
        return json(showProperty(row));
      },
    }),
    defineRoute({
      method: 'PATCH',
      path: '/properties/:id',
      operationId: 'updateProperty',
      scope: 'contacts:write',
      tag,
      summary: 'Change a property',
      description: 'Its key and its type never change.',
      params: idParameter,
      body: propertyPatch,
      success: { statusCode: 200, schema: propertyRecord, when: 'The changed property.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id }, body }) => {
        const outcome = await updateProperty(tools, { organizationId, id }, body);
        switch (outcome.kind) {
          case 'updated':
            return json(showProperty(outcome.property));
          case 'not_found':
            throw resourceNotFound();
          case 'unchangeable':
            throw new PublicError(validationError, `${outcome.field} must stay as it is`);
        }
      },
    }),
    defineRoute({
      method: 'DELETE',
      path: '/properties/:id',
      operationId: 'deleteProperty',
      scope: 'contacts:write',
      tag,
      summary: 'Delete a property and its values',
      description: 'A property that a segment uses cannot be deleted.',
      params: idParameter,
      success: { statusCode: 200, schema: deletedOf('property'), when: 'The property is deleted.' },
      errors: [notFound, conflict],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        switch (await deleteProperty(tools, { organizationId, id })) {
          case 'deleted':
            tools.onDeleted();
            return json({ object: 'property', id, deleted: true });
          case 'not_found':
            throw resourceNotFound();
          case 'in_use':
            throw new PublicError(conflict, 'A segment uses the property. Change or delete that first.');
        }
      },
    }),
  ];
}

function showProperty(row: store.PropertyRow): PropertyRecord {
  return {
    id: row.id,
    key: row.key,
    name: row.name,
    type: row.type,
    description: row.description,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}
