import { Type } from 'typebox';
import { resolveContact } from '../audience/audience.ts';
import { toRouteResponse } from '../platform/http/acceptance.ts';
import {
  badRequest,
  conflict,
  defineError,
  notFound,
  PublicError,
  resourceNotFound,
} from '../platform/http/errors.ts';
import { idempotencyErrors } from '../platform/http/idempotency.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf, literals, referenceOf } from '../platform/http/shapes.ts';
import { instantOfId } from '../platform/ids.ts';
import { conversionErrors } from './conversion.ts';
import { groupRecord, showGroup } from './conversion-record.ts';
import { groupings, listConversionGroups } from './conversion-store.ts';
import {
  createDefinition,
  type DefinitionOutcome,
  type DefinitionTools,
  deleteDefinition,
  updateDefinition,
} from './definitions.ts';
import { readEvent, type ReadEvent, readEvents } from './event-body.ts';
import {
  contactAmbiguous,
  contactNotFound,
  contactRequired,
  createEventIntake,
  eventNotFound,
  type IntakeTools,
  schemaMismatch,
} from './intake.ts';
import {
  batchBody,
  batchMax,
  batchRecord,
  definitionBody,
  definitionPatch,
  type DefinitionRecord,
  definitionRecord,
  eventBody,
  type OccurrenceRecord,
  occurrenceRecord,
} from './schema.ts';
import * as store from './store.ts';

export { eventPreparations } from './event-body.ts';

const eventLimitReached = defineError(422, 'event_limit_reached', 'The plan allows no more events.');
const eventInUse = defineError(409, 'event_in_use', 'A segment asks about the event.');

/** Five hundred events of some kilobytes each. */
const batchBodyBytesMax = 10 * 1_048_576;

export type EventRouteTools = DefinitionTools & IntakeTools;

export function eventRoutes(tools: EventRouteTools): Route[] {
  const { database } = tools;
  const intake = createEventIntake(tools);
  const tag = 'Events';
  return [
    defineRoute({
      method: 'POST',
      path: '/events',
      operationId: 'createEvent',
      scope: 'events:write',
      tag,
      summary: 'Define an event',
      description: 'A kind of thing that contacts do, with the fields that its payload has.',
      body: definitionBody,
      success: { statusCode: 201, schema: definitionRecord, when: 'The event.' },
      errors: [conflict, eventLimitReached, ...conversionErrors],
      handle: async ({ caller: { organizationId }, body }) =>
        json(showDefinition(takeDefinition(await createDefinition(tools, organizationId, body)))),
    }),
    defineRoute({
      method: 'GET',
      path: '/events',
      operationId: 'listEvents',
      scope: 'events:read',
      tag,
      summary: 'List the events that are defined',
      query: Type.Object(
        {
          ...paginationParameters,
          search: Type.Optional(
            Type.String({ minLength: 1, maxLength: 100, description: 'Part of the name, ignoring case.' }),
          ),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(definitionRecord), when: 'A page of events.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { search } = query;
        const rows = await database.asOrganizations([organizationId], (transaction) =>
          store.listDefinitions(transaction, {
            organizationId,
            page,
            ...(search !== undefined && { search }),
          }),
        );
        return json(toList(rows, page, showDefinition));
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/events/send',
      operationId: 'sendEvent',
      scope: 'events:send',
      tag,
      summary: 'Tell that a contact did something',
      description:
        'Name the contact by `contact_id` alone, or by `external_id`, `email` or `phone_number`, of which the first that ' +
        'is known counts. Where none is known, the event makes a contact with them. ' +
        'Counts towards the limit of events and not of requests, as the headers `ratelimit-*` of its answers tell.',
      body: eventBody,
      isIdempotent: true,
      countEvents: () => 1,
      success: { statusCode: 202, schema: referenceOf('EventReference'), when: 'The event is stored.' },
      errors: [
        contactRequired,
        contactAmbiguous,
        eventNotFound,
        contactNotFound,
        schemaMismatch,
        ...idempotencyErrors,
      ],
      handle: async ({ caller: { organizationId }, body, idempotencyKey }) => {
        const events = [readEvent(body)];
        return toRouteResponse(await intake.send({ organizationId, form: 'single', events, idempotencyKey }));
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/events/send/batch',
      operationId: 'sendEventBatch',
      scope: 'events:send',
      tag,
      summary: `Send up to ${batchMax} events`,
      description:
        'Each as if it were sent by itself, one after the other: one that is refused has its error, and the others are ' +
        'stored, all together. Each counts towards the limit of events.',
      body: batchBody,
      bodyBytesMax: batchBodyBytesMax,
      isIdempotent: true,
      countEvents: ({ body, prepared }) => takeEvents(body, prepared).length,
      success: { statusCode: 202, schema: batchRecord, when: 'What became of each of them, in their order.' },
      errors: idempotencyErrors,
      handle: async ({ caller: { organizationId }, body, prepared, facts, idempotencyKey }) => {
        const given = takeEvents(body, prepared);
        // The thread for large bodies has read them already.
        const events = prepared === null ? readEvents(given, facts) : (given as ReadEvent[]);
        return toRouteResponse(await intake.send({ organizationId, form: 'batch', events, idempotencyKey }));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/events/:id',
      operationId: 'getEvent',
      scope: 'events:read',
      tag,
      summary: 'Read what an event is defined as',
      params: idParameter,
      success: { statusCode: 200, schema: definitionRecord, when: 'The event.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const row = await database.asOrganizations([organizationId], (transaction) =>
          store.findDefinition(transaction, { organizationId, id }),
        );
        if (row === null) throw resourceNotFound();
        return json(showDefinition(row));
      },
    }),
    defineRoute({
      method: 'PATCH',
      path: '/events/:id',
      operationId: 'updateEvent',
      scope: 'events:write',
      tag,
      summary: 'Change an event',
      description:
        'Its name never changes. What was sent before stays as it is. A field that a segment asks about keeps its type, and stays.',
      params: idParameter,
      body: definitionPatch,
      success: { statusCode: 200, schema: definitionRecord, when: 'The changed event.' },
      errors: [notFound, conflict, ...conversionErrors],
      handle: async ({ caller: { organizationId }, params: { id }, body }) =>
        json(showDefinition(takeDefinition(await updateDefinition(tools, { organizationId, id }, body)))),
    }),
    defineRoute({
      method: 'DELETE',
      path: '/events/:id',
      operationId: 'deleteEvent',
      scope: 'events:write',
      tag,
      summary: 'Delete an event',
      description: 'No more of it can be sent. What was sent stays in the timelines of the contacts.',
      params: idParameter,
      success: { statusCode: 200, schema: deletedOf('event'), when: 'The event is deleted.' },
      errors: [notFound, eventInUse],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const outcome = await deleteDefinition(tools, { organizationId, id });
        if (outcome === 'not_found') throw resourceNotFound();
        if (outcome !== 'deleted') {
          throw new PublicError(
            eventInUse,
            `The event is used by the ${outcome.kind} ${outcome.id}. Change or delete that first.`,
          );
        }
        return json({ object: 'event', id, deleted: true });
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/events/:id/conversions',
      operationId: 'listConversions',
      scope: 'events:read',
      tag,
      summary: 'List what an event was credited to',
      description:
        'Conversions and their values, by campaign, message or category. The newest campaign or message comes first; ' +
        'categories have no order; last come the conversions that have none. An event is credited some seconds after ' +
        'it has arrived.',
      params: idParameter,
      query: Type.Object(
        {
          ...paginationParameters,
          group_by: Type.Optional(
            literals(groupings, {
              title: 'ConversionGrouping',
              description: '`campaign_id` if it is left out.',
            }),
          ),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(groupRecord), when: 'A page of groups.' },
      errors: [badRequest, notFound],
      handle: async ({ caller: { organizationId }, params: { id }, query }) => {
        const page = readPage(query);
        const groupedBy = query.group_by ?? 'campaign_id';
        const groups = await database.asOrganizations([organizationId], async (transaction) => {
          const definition = await store.findDefinition(transaction, { organizationId, id });
          if (definition === null) return null;
          const { number: definitionNumber } = definition;
          return listConversionGroups(transaction, { organizationId, definitionNumber, groupedBy, page });
        });
        if (groups === null) throw resourceNotFound();
        return json(toList(groups, page, (group) => showGroup(group, groupedBy)));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/contacts/:id/events',
      operationId: 'listContactEvents',
      scope: 'events:read',
      tag,
      summary: 'List what a contact did',
      description:
        'In the order of arrival, newest first. A page of large payloads, of half a megabyte together, has fewer events ' +
        'than `limit`; `has_more` says whether there are more.',
      params: idParameter,
      query: Type.Object(paginationParameters, { additionalProperties: false }),
      success: { statusCode: 200, schema: listOf(occurrenceRecord), when: 'A page of events.' },
      errors: [badRequest, notFound],
      handle: async ({ caller: { organizationId }, params: { id: contactId }, query }) => {
        const page = readPage(query);
        const rows = await database.asOrganizations([organizationId], async (transaction) => {
          const [contact, listed] = await Promise.all([
            resolveContact(transaction, organizationId, { contact_id: contactId }),
            store.listEventsOfContact(transaction, { organizationId, contactId }, page),
          ]);
          return contact.kind === 'found' ? listed : null;
        });
        if (rows === null) throw resourceNotFound();
        const list = toList(rows, page, showOccurrence);
        return json({ ...list, has_more: list.has_more || rows.some(({ is_cut_off }) => is_cut_off) });
      },
    }),
  ];
}

/** The events of a batch: as they were sent, or as the thread for large bodies read them. */
function takeEvents(body: unknown, prepared: unknown): readonly unknown[] {
  // What the schema of the route let through.
  return prepared === null ? (body as { events: unknown[] }).events : (prepared as ReadEvent[]);
}

function takeDefinition(outcome: DefinitionOutcome): store.DefinitionRow {
  switch (outcome.kind) {
    case 'done':
      return outcome.definition;
    case 'taken':
      throw new PublicError(conflict, 'There is an event of that name already.');
    case 'limit_reached':
      throw new PublicError(
        eventLimitReached,
        'The limit of events is reached. Delete one, or ask for a larger plan.',
      );
    case 'not_found':
      throw resourceNotFound();
    case 'refused':
      throw outcome.error;
    case 'field_in_use':
      throw new PublicError(
        conflict,
        `The field ${outcome.field.name} must stay as it is: the segment ${outcome.field.segmentId} asks about it.`,
      );
  }
}

function showDefinition(row: store.DefinitionRow): DefinitionRecord {
  return {
    id: row.id,
    name: row.name,
    description: row.description,
    schema: row.schema,
    conversion: row.conversion,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

function showOccurrence(row: store.OccurrenceRow): OccurrenceRecord {
  return {
    id: row.id,
    event: row.name,
    payload: row.payload,
    occurred_at: row.occurred_at.toISOString(),
    received_at: instantOfId(row.id).toISOString(),
  };
}
