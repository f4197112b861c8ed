import { Type } from 'typebox';
import { parseAddress } from '../channels/email/email.ts';
import {
  badRequest,
  conflict,
  defineError,
  notFound,
  PublicError,
  resourceNotFound,
  validationError,
} from '../platform/http/errors.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf } from '../platform/http/shapes.ts';
import { createContact, deleteContacts, listContacts, readContact, updateContact } from './contacts.ts';
import type { AudienceRouteTools } from './route-tools.ts';
import { bulkDeletion, contactBody, contactIdsBody, contactPatch, contactRecord } from './schema.ts';

const segmentNotReady = defineError(409, 'segment_not_ready', 'The segment is still being computed.');

export function contactRoutes(tools: AudienceRouteTools): Route[] {
  const tag = 'Contacts';
  return [
    defineRoute({
      method: 'POST',
      path: '/contacts',
      operationId: 'createContact',
      scope: 'contacts:write',
      tag,
      summary: 'Create a contact',
      description:
        'Needs at least one of `external_id`, `email` and `phone_number`. If another contact has one of them, the ' +
        'message of the 409 names that contact’s id. Whoever has opted out at an address stays so: `consent` shows what holds.',
      body: contactBody,
      success: { statusCode: 201, schema: contactRecord, when: 'The contact.' },
      errors: [conflict],
      handle: async ({ caller: { organizationId }, body }) => {
        const outcome = await createContact(tools, organizationId, body);
        switch (outcome.kind) {
          case 'created':
            tools.onChanged();
            return json(outcome.contact);
          case 'invalid':
            throw invalid(outcome.issues);
          case 'taken':
            throw taken(outcome);
        }
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/contacts',
      operationId: 'listContacts',
      scope: 'contacts:read',
      tag,
      summary: 'List contacts',
      description: 'Newest first. Several filters together select the contacts that match all of them.',
      query: Type.Object(
        {
          ...paginationParameters,
          search: Type.Optional(
            Type.String({
              minLength: 1,
              maxLength: 255,
              sensitive: true,
              description: 'Beginning of the email address, of a name, or of the external id.',
            }),
          ),
          email: Type.Optional(Type.String({ format: 'idn-email', description: 'Case-insensitive.' })),
          external_id: Type.Optional(Type.String({ minLength: 1, maxLength: 255, sensitive: true })),
          phone_number: Type.Optional(Type.String({ format: 'phone-number' })),
          list_id: Type.Optional(Type.String({ format: 'uuid' })),
          tag_id: Type.Optional(Type.String({ format: 'uuid' })),
          segment_id: Type.Optional(Type.String({ format: 'uuid' })),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(contactRecord), when: 'A page of contacts.' },
      errors: [badRequest, segmentNotReady],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { search, email, external_id, phone_number } = query;
        const { list_id: listId, tag_id: tagId, segment_id: segmentId } = query;
        const emailKey = email === undefined ? undefined : parseAddress(email)?.normalised;
        const listed = await listContacts(tools, {
          organizationId,
          filter: {
            ...(search !== undefined && { search }),
            identifiers: {
              ...(emailKey !== undefined && { email: emailKey }),
              ...(external_id !== undefined && { external_id }),
              ...(phone_number !== undefined && { phone_number }),
            },
          },
          sets: {
            ...(listId !== undefined && { listId }),
            ...(tagId !== undefined && { tagId }),
            ...(segmentId !== undefined && { segmentId }),
          },
          page,
        });
        if (listed === 'segment_not_ready') {
          throw new PublicError(
            segmentNotReady,
            'The segment is still being computed. Try again when its status is ready.',
          );
        }
        return json(toList(listed.rows, page, listed.show));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/contacts/:id',
      operationId: 'getContact',
      scope: 'contacts:read',
      tag,
      summary: 'Read a contact',
      params: idParameter,
      success: { statusCode: 200, schema: contactRecord, when: 'The contact.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const contact = await readContact(tools, { organizationId, id });
        if (contact === null) throw resourceNotFound();
        return json(contact);
      },
    }),
    defineRoute({
      method: 'PATCH',
      path: '/contacts/:id',
      operationId: 'updateContact',
      scope: 'contacts:write',
      tag,
      summary: 'Change a contact',
      description:
        'Fields that are not given stay unchanged; null removes a value. `subscribed` in `consent` takes back what its ' +
        'owner has said against messages at the address, and is noted with its time and API key.',
      params: idParameter,
      body: contactPatch,
      success: { statusCode: 200, schema: contactRecord, when: 'The changed contact.' },
      errors: [notFound, conflict],
      handle: async ({ caller: { organizationId, apiKeyId }, params: { id }, body }) => {
        const outcome = await updateContact(tools, { organizationId, id, apiKeyId: apiKeyId ?? null }, body);
        switch (outcome.kind) {
          case 'updated':
            tools.onChanged();
            return json(outcome.contact);
          case 'not_found':
            throw resourceNotFound();
          case 'invalid':
            throw invalid(outcome.issues);
          case 'taken':
            throw taken(outcome);
        }
      },
    }),
    defineRoute({
      method: 'DELETE',
      path: '/contacts/:id',
      operationId: 'deleteContact',
      scope: 'contacts:write',
      tag,
      summary: 'Delete a contact and erase its data',
      description:
        'Its addresses are also erased from messages, as soon as these are delivered. Suppressions stay as hashes, which do not reveal the address.',
      params: idParameter,
      success: { statusCode: 200, schema: deletedOf('contact'), when: 'The contact is deleted.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const deleted = await deleteContacts(tools, organizationId, [id]);
        if (deleted.size === 0) throw resourceNotFound();
        tools.onChanged();
        tools.onErased();
        return json({ object: 'contact', id, deleted: true });
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/contacts/bulk-delete',
      operationId: 'bulkDeleteContacts',
      addsStorage: false,
      scope: 'contacts:write',
      tag,
      summary: 'Delete up to 1,000 contacts',
      description: 'The same as deleting each of them.',
      body: contactIdsBody,
      success: {
        statusCode: 200,
        schema: bulkDeletion,
        when: 'Those that existed are deleted.',
      },
      handle: async ({ caller: { organizationId }, body }) => {
        const wanted = [...new Set(body.contact_ids.map((id) => id.toLowerCase()))];
        const deleted = await deleteContacts(tools, organizationId, wanted);
        if (deleted.size > 0) {
          tools.onChanged();
          tools.onErased();
        }
        return json({
          object: 'bulk_delete',
          deleted_count: deleted.size,
          not_found_ids: wanted.filter((id) => !deleted.has(id)),
        });
      },
    }),
  ];
}

function invalid(issues: readonly string[]): PublicError {
  return new PublicError(validationError, issues.join(', '));
}

function taken({ field, contactId }: { field: string; contactId: string | null }): PublicError {
  const owner = contactId === null ? 'another contact' : `the contact ${contactId}`;
  return new PublicError(conflict, `${field} is in use by ${owner}.`);
}
