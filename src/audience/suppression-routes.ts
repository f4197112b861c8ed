import { dateOf, parseTimestamp } from '../platform/clock.ts';
import {
  badRequest,
  conflict,
  forbidden,
  notFound,
  PublicError,
  resourceNotFound,
  toEnvelope,
  validationError,
} from '../platform/http/errors.ts';
import { readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route, there } from '../platform/http/route.ts';
import { deletedOf, idParameter, listOf } from '../platform/http/shapes.ts';
import { type ReadSuppression, readSuppressionBodies } from './suppression-body.ts';
import { showSuppression } from './suppression-record.ts';
import {
  checkAddresses,
  deleteByRequest,
  listByRequest,
  type PlacedSuppression,
  readSuppression,
  suppressByRequest,
  type SuppressionRequestTools,
} from './suppression-requests.ts';
import {
  bulkDeletionBody,
  type BulkRecord,
  bulkRecord,
  checkBody,
  type CheckRecord,
  checkRecord,
  deletionQuery,
  listQuery,
  suppressionBody,
  suppressionRecord,
  suppressionsBody,
  type SuppressionsDeletion,
  suppressionsDeletion,
} from './suppression-schema.ts';

export function suppressionRoutes(tools: SuppressionRequestTools): Route[] {
  const tag = 'Suppressions';
  return [
    defineRoute({
      method: 'POST',
      path: '/suppressions',
      operationId: 'createSuppression',
      // It stops something.
      addsStorage: false,
      scope: 'suppressions:write',
      tag,
      summary: 'Suppress an address',
      description:
        'Nothing more is sent to it on the channel, or no campaigns. Repeating the request changes nothing: what the ' +
        'organization has suppressed for the same scope stays as it is, with its note and its end.',
      body: suppressionBody,
      success: {
        statusCode: 201,
        schema: suppressionRecord,
        when: 'The suppression.',
        whenThere: 'The suppression that the organization had made before, as it is.',
      },
      handle: async ({ caller: { organizationId, apiKeyId = null }, body }) => {
        const [placed] = await suppressByRequest(tools, { organizationId, apiKeyId }, [body]);
        if (placed === undefined) throw new Error('a suppression was neither made nor there');
        const record = showSuppression(placed.suppression);
        return placed.isNew ? json(record) : there(record);
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/suppressions',
      operationId: 'listSuppressions',
      scope: 'suppressions:read',
      tag,
      summary: 'List suppressions',
      description:
        'Newest first, of every reason. Several filters together select those that match all of them. An address that is ' +
        'suppressed for several reasons has a record for each.',
      query: listQuery,
      success: { statusCode: 200, schema: listOf(suppressionRecord), when: 'A page of suppressions.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { channel, reason, search, created_after: createdAfter } = query;
        const createdAfterMs = createdAfter === undefined ? null : parseTimestamp(createdAfter);
        const rows = await listByRequest(tools, {
          organizationId,
          filter: {
            ...(channel !== undefined && { channel }),
            ...(reason !== undefined && { reason }),
            ...(search !== undefined && { search }),
            ...(createdAfterMs !== null && { createdAfter: dateOf(createdAfterMs) }),
          },
          page,
        });
        return json(toList(rows, page, showSuppression));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/suppressions/:id',
      operationId: 'getSuppression',
      scope: 'suppressions:read',
      tag,
      summary: 'Read a suppression',
      params: idParameter,
      success: { statusCode: 200, schema: suppressionRecord, when: 'The suppression.' },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const suppression = await readSuppression(tools, { organizationId, id });
        if (suppression === null) throw resourceNotFound();
        return json(showSuppression(suppression));
      },
    }),
    defineRoute({
      method: 'DELETE',
      path: '/suppressions/:id',
      operationId: 'deleteSuppression',
      scope: 'suppressions:write',
      tag,
      summary: 'Delete a suppression',
      description:
        'The address can be written to again, unless another suppression holds. After a bounce that is one more try: the ' +
        'next one suppresses it anew. A complaint needs `confirm=complaint`. What the owner of the address has said ' +
        '(`unsubscribe`) is changed with the consent of the contact, and what the operator suppressed by the operator.',
      params: idParameter,
      query: deletionQuery,
      success: {
        statusCode: 200,
        schema: deletedOf('suppression'),
        when: 'The suppression is deleted.',
      },
      errors: [notFound, conflict, forbidden],
      handle: async ({ caller: { organizationId }, params: { id }, query: { confirm } }) => {
        const [outcome] = await deleteByRequest(tools, {
          organizationId,
          ids: [id],
          isComplaintMeant: confirm === 'complaint',
        });
        if (outcome !== 'deleted') throw outcome ?? resourceNotFound();
        return json({ object: 'suppression', id, deleted: true });
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/suppressions/bulk',
      operationId: 'bulkCreateSuppressions',
      scope: 'suppressions:write',
      tag,
      summary: 'Suppress up to 1,000 addresses',
      description:
        'Each as if it were suppressed by itself: one that is refused has its error, and the others are suppressed.',
      body: suppressionsBody,
      success: { statusCode: 200, schema: bulkRecord, when: 'What became of each of them, in their order.' },
      handle: async ({ caller: { organizationId, apiKeyId = null }, body, prepared, facts }) => {
        // A large body was read by the thread, and left there.
        const read = (prepared ?? readSuppressionBodies(body.suppressions, facts)) as ReadSuppression[];
        const bodies = read.flatMap((one) => (one.kind === 'read' ? [one.body] : []));
        return json(showBulk(read, await suppressByRequest(tools, { organizationId, apiKeyId }, bodies)));
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/suppressions/bulk-delete',
      operationId: 'bulkDeleteSuppressions',
      addsStorage: false,
      scope: 'suppressions:write',
      tag,
      summary: 'Delete up to 1,000 suppressions',
      description:
        'The same as deleting each of them: those that cannot be deleted are named with the reason, and the others are.',
      body: bulkDeletionBody,
      success: { statusCode: 200, schema: suppressionsDeletion, when: 'What became of them.' },
      handle: async ({ caller: { organizationId }, body }) => {
        const ids = [...new Set(body.ids.map((id) => id.toLowerCase()))];
        const isComplaintMeant = body.confirm === 'complaint';
        const outcomes = await deleteByRequest(tools, { organizationId, ids, isComplaintMeant });
        const deletion: SuppressionsDeletion = {
          object: 'bulk_delete',
          deleted_count: outcomes.filter((outcome) => outcome === 'deleted').length,
          not_found_ids: [],
          refused: [],
        };
        for (const [index, id] of ids.entries()) {
          const outcome = outcomes[index];
          if (outcome === undefined || outcome === 'deleted') continue;
          if (outcome.definition === notFound) deletion.not_found_ids.push(id);
          else deletion.refused.push({ id, error: toEnvelope(outcome) });
        }
        return json(deletion);
      },
    }),
    defineRoute({
      method: 'POST',
      path: '/suppressions/check',
      operationId: 'checkSuppressions',
      addsStorage: false,
      scope: 'suppressions:read',
      tag,
      summary: 'Ask which of up to 1,000 addresses are suppressed',
      description:
        'There is no need to ask before sending: what is suppressed is looked at when a message is handed off.',
      body: checkBody,
      success: { statusCode: 200, schema: checkRecord, when: 'Each address, in their order.' },
      handle: async ({ caller: { organizationId }, body: { channel, addresses } }) => {
        const checked = await checkAddresses(tools, { organizationId, channel, addresses });
        const answer: CheckRecord = {
          data: checked.map(({ address, suppressions }) => ({
            address,
            suppressed: suppressions.length > 0,
            suppressions: suppressions.map(showSuppression),
          })),
        };
        return json(answer);
      },
    }),
  ];
}

function showBulk(read: readonly ReadSuppression[], placed: readonly PlacedSuppression[]): BulkRecord {
  const outcomes = placed.values();
  return {
    data: read.map((one, index): BulkRecord['data'][number] => {
      if (one.kind === 'invalid') {
        const error = new PublicError(validationError, one.issues.join(', '));
        return { index, address: one.address, error: toEnvelope(error) };
      }
      const { value: outcome } = outcomes.next();
      if (outcome === undefined) throw new Error('a suppression was neither made nor there');
      return { index, created: outcome.isNew, ...showSuppression(outcome.suppression) };
    }),
  };
}
