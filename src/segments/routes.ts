import { Type } from 'typebox';
import { contactRecord } from '../audience/audience.ts';
import {
  badRequest,
  conflict,
  defineError,
  notFound,
  overloaded,
  PublicError,
  resourceNotFound,
  serviceUnavailable,
  validationError,
} from '../platform/http/errors.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf } from '../platform/http/shapes.ts';
import type { Secrets } from '../platform/secrets.ts';
import { isStatementTimeout } from '../platform/postgres/database.ts';
import {
  explanationRecord,
  previewBody,
  previewRecord,
  searchBody,
  segmentBody,
  segmentPatch,
  type SegmentRecord,
  segmentRecord,
} from './schema.ts';
import {
  createSegment,
  deleteSegment,
  explainMembership,
  type Look,
  previewConditions,
  searchContacts,
  type SegmentOutcome,
  type SegmentTools,
  updateSegment,
} from './segments.ts';
import * as store from './store.ts';

const segmentLimitReached = defineError(422, 'segment_limit_reached', 'The plan allows no more segments.');
const segmentInUse = defineError(
  409,
  'segment_in_use',
  'A scheduled or sending campaign, or another segment, uses the segment.',
);

export type SegmentRouteTools = SegmentTools & {
  secrets: Secrets;
  /** Called after conditions were saved that must be computed. */
  onChanged: () => void;
  /** Called after a segment was deleted, whose members must be removed. */
  onDeleted: () => void;
};

export function segmentRoutes(tools: SegmentRouteTools): Route[] {
  const { database } = tools;
  const tag = 'Segments';
  return [
    defineRoute({
      method: 'POST',
      path: '/segments',
      operationId: 'createSegment',
      scope: 'contacts:write',
      tag,
      summary: 'Create a segment',
      description: 'Its contacts are computed in the background: `status` is `computing` until this is done.',
      body: segmentBody,
      success: { statusCode: 201, schema: segmentRecord, when: 'The segment.' },
      errors: [segmentLimitReached, conflict],
      handle: async ({ caller: { organizationId }, body }) => {
        const segment = takeSegment(await createSegment(tools, organizationId, body));
        tools.onChanged();
        return json(showSegment(segment));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/segments',
      operationId: 'listSegments',
      scope: 'contacts:read',
      tag,
      summary: 'List the segments',
      query: Type.Object(
        {
          ...paginationParameters,
          search: Type.Optional(
            Type.String({ minLength: 1, maxLength: 255, description: 'Part of the name, ignoring case.' }),
          ),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(segmentRecord), when: 'A page of segments.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { search } = query;
        const rows = await database.asOrganizations([organizationId], (transaction) =>
          store.listSegments(transaction, {
            organizationId,
            page,
            ...(search !== undefined && { search }),
          }),
        );
        return json(toList(rows, page, showSegment));
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/segments/preview',
      operationId: 'previewSegment',
      addsStorage: false,
      scope: 'contacts:read',
      tag,
      summary: 'Count the contacts that conditions describe',
      description: 'Reads all contacts during the request. An organization can run one preview at a time.',
      body: previewBody,
      success: {
        statusCode: 200,
        schema: previewRecord,
        when: 'Their number, and some of them.',
      },
      errors: [serviceUnavailable],
      handle: async ({ caller: { organizationId }, body }) => {
        const { count, sample } = await takeLook(previewConditions(tools, organizationId, body.conditions), {
          busy: 'Another preview of the organization is running. Try again when it is done.',
          tooLong: 'Counting takes too long. Save the segment: its contacts are counted in the background.',
        });
        return json({ contact_count: count, sample });
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/contacts/search',
      operationId: 'searchContacts',
      addsStorage: false,
      scope: 'contacts:read',
      tag: 'Contacts',
      summary: 'Search contacts by conditions',
      description:
        'The contacts for whom the conditions hold now, as those of a segment, newest first. May read all contacts during ' +
        'the request: an organization can run one search or preview at a time. What is asked for often is a segment.',
      body: searchBody,
      success: { statusCode: 200, schema: listOf(contactRecord), when: 'A page of contacts.' },
      errors: [badRequest, serviceUnavailable],
      handle: async ({ caller: { organizationId }, body }) => {
        const page = readPage(body);
        const wanted = { organizationId, conditions: body.conditions, page };
        const contacts = await takeLook(searchContacts(tools, wanted), {
          busy: 'Another search or preview of the organization is running. Try again when it is done.',
          tooLong:
            'The search takes too long. Save the conditions as a segment: its contacts are found in the background.',
        });
        return json(toList(contacts, page, (contact) => contact));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/segments/:id',
      operationId: 'getSegment',
      scope: 'contacts:read',
      tag,
      summary: 'Read a segment',
      params: idParameter,
      success: { statusCode: 200, schema: segmentRecord, when: 'The segment.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const row = await database.asOrganizations([organizationId], (transaction) =>
          store.findSegment(transaction, { organizationId, id }),
        );
        if (row === null) throw resourceNotFound();
        return json(showSegment(row));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/segments/:id/contacts/:contact_id',
      operationId: 'explainSegmentMembership',
      scope: 'contacts:read',
      tag,
      summary: 'Explain why a contact is in a segment, or is not',
      params: Type.Object({
        id: Type.String({ format: 'uuid' }),
        contact_id: Type.String({ format: 'uuid' }),
      }),
      success: {
        statusCode: 200,
        schema: explanationRecord,
        when: 'The conditions, and which of them hold for the contact.',
      },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id, contact_id: contactId } }) => {
        const explanation = await explainMembership(tools, { organizationId, id }, contactId);
        if (explanation === null) throw resourceNotFound();
        const { isMember, holds, conditions } = explanation;
        return json({ segment_id: id, contact_id: contactId, is_member: isMember, holds, conditions });
      },
    }),
    defineRoute({
      method: 'PATCH',
      path: '/segments/:id',
      operationId: 'updateSegment',
      scope: 'contacts:write',
      tag,
      summary: 'Change a segment',
      description: 'If its conditions change, its contacts are computed again.',
      params: idParameter,
      body: segmentPatch,
      success: { statusCode: 200, schema: segmentRecord, when: 'The changed segment.' },
      errors: [notFound, segmentLimitReached],
      handle: async ({ caller: { organizationId }, params: { id }, body }) => {
        const segment = takeSegment(await updateSegment(tools, { organizationId, id }, body));
        if (body.conditions !== undefined) tools.onChanged();
        return json(showSegment(segment));
      },
    }),
    defineRoute({
      method: 'DELETE',
      path: '/segments/:id',
      operationId: 'deleteSegment',
      scope: 'contacts:write',
      tag,
      summary: 'Delete a segment',
      description: 'Its contacts are not deleted.',
      params: idParameter,
      success: { statusCode: 200, schema: deletedOf('segment'), when: 'The segment is deleted.' },
      errors: [notFound, segmentInUse],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const outcome = await deleteSegment(tools, { organizationId, id });
        if (outcome === 'not_found') throw resourceNotFound();
        if (outcome !== 'deleted') {
          throw new PublicError(
            segmentInUse,
            `The segment is used by the ${outcome.kind} ${outcome.id}. Change or delete that first.`,
          );
        }
        tools.onDeleted();
        return json({ object: 'segment', id, deleted: true });
      },
    }),
  ];
}

/** Throws the error of a look that came to nothing. */
async function takeLook<Seen>(
  look: Promise<Look<Seen>>,
  { busy, tooLong }: { busy: string; tooLong: string },
): Promise<Seen> {
  const looked = await look.catch((cause: unknown) => {
    throw isStatementTimeout(cause) ? overloaded(tooLong) : cause;
  });
  switch (looked.kind) {
    case 'seen':
      return looked.seen;
    case 'invalid':
      throw invalid(looked.issues);
    case 'busy':
      throw overloaded(busy);
  }
}

function takeSegment(outcome: SegmentOutcome): store.SegmentRow {
  switch (outcome.kind) {
    case 'done':
      return outcome.segment;
    case 'invalid':
      throw invalid(outcome.issues);
    case 'limit_reached':
      throw new PublicError(
        segmentLimitReached,
        'The limit of segments is reached. Delete one, or ask for a larger plan.',
      );
    case 'not_found':
      throw resourceNotFound();
  }
}

function invalid(issues: readonly string[]): PublicError {
  return new PublicError(validationError, issues.join(', '));
}

function showSegment(row: store.SegmentRow): SegmentRecord {
  return {
    id: row.id,
    name: row.name,
    description: row.description,
    conditions: row.conditions,
    status: row.status,
    contact_count: row.contact_count,
    computed_at: row.computed_at?.toISOString() ?? null,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}
