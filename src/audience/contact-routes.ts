import { Type } from 'typebox';
import { readAddress } from '../channels/email/email.ts';
import {
  badRequest,
  conflict,
  defineError,
  notFound,
  PublicError,
  resourceNotFound,
} from '../platform/http/errors.ts';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route, there } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf } from '../platform/http/shapes.ts';
import { type ReadContact, readContactBodies } from './contact-body.ts';
import { refuseContact, refuseTaken } from './contact-refusal.ts';
import { createContact, deleteContacts, listContacts, readContact, updateContact } from './contacts.ts';
import type { AudienceRouteTools } from './route-tools.ts';
import {
  bulkContacts,
  bulkDeletion,
  contactBody,
  contactIdsBody,
  contactPatch,
  contactRecord,
  contactsBody,
  contactUpsert,
} from './schema.ts';
import { bulkSetsMax, upsertContact, upsertContacts } from './upserting.ts';

/** Of a thousand contacts with as much as they usually have. */
const bulkBytesMax = 10 * 1_048_576;

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
            throw refuseContact(outcome);
          case 'taken':
            throw refuseTaken(outcome);
        }
      },
    }),
    defineRoute({
      method: 'PUT',
      path: '/contacts',
      operationId: 'upsertContact',
      scope: 'contacts:write',
      tag,
      summary: 'Create a contact, or change the one that is meant',
      description:
        'The contact is meant that has the first of `external_id`, `email` and `phone_number` that is given and that any ' +
        'contact has; if none has, it is created. Fields that are not given stay unchanged, and null removes a value. A ' +
        'contact that is found by one identifier gets the others, in place of those that it has after that one in this ' +
        'order. 409 names both fields where they are of two contacts, or where the contact that has one has another of one ' +
        'before it. `subscribed` takes back no opt-out: `consent` shows what holds.',
      body: contactUpsert,
      success: {
        statusCode: 201,
        schema: contactRecord,
        when: 'The contact, which was created.',
        whenThere: 'The contact that was found, as it is now.',
      },
      errors: [conflict],
      handle: async ({ caller: { organizationId }, body }) => {
        const { contact, isNew } = await upsertContact(tools, organizationId, body);
        return isNew ? json(contact) : there(contact);
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/contacts/bulk',
      operationId: 'bulkUpsertContacts',
      scope: 'contacts:write',
      tag,
      summary: 'Create or change up to 1,000 contacts',
      description:
        'Each as if it were put by itself, in their order: one that is refused has its error, and the others are written, ' +
        'all in one transaction. Those that name the same contact are taken one on top of the other. They may name at most ' +
        `${bulkSetsMax} lists and tags in all.`,
      body: contactsBody,
      bodyBytesMax: bulkBytesMax,
      isIdempotent: true,
      success: {
        statusCode: 200,
        schema: bulkContacts,
        when: 'What became of each of them, in their order.',
      },
      errors: idempotencyErrors,
      handle: async ({ caller: { organizationId }, body, prepared, idempotencyKey, facts }) => {
        // A large body was read by the thread, and left there.
        const bodies = (prepared ?? readContactBodies(body.contacts, facts)) as ReadContact[];
        const outcome = await upsertContacts(tools, { organizationId, bodies }, idempotencyKey);
        return toRouteResponse(outcome);
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
        const emailKey = email === undefined ? undefined : readAddress(email)?.normalised;
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
            throw refuseContact(outcome);
          case 'taken':
            throw refuseTaken(outcome);
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
