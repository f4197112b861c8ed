import { Type } from 'typebox';
import { type Clock, within } from '../platform/clock.ts';
import { badRequest, resourceNotFound } from '../platform/http/errors.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { idParameter, listOf, literals } from '../platform/http/shapes.ts';
import { lowestIdAt } from '../platform/ids.ts';
import { loggedSources, type LoggedSource } from '../platform/http/logged-request.ts';
import type { Database } from '../platform/postgres/database.ts';
import { keptMs } from './retention.ts';
import { type ListedRequest, listedRequest, type RequestRecord, requestRecord } from './schema.ts';
import * as store from './store.ts';

export type RequestLogRouteTools = {
  database: Database;
  clock: Clock;
  /** Resolves when what this process has answered by now is in the log, or given up. */
  flush: () => Promise<void>;
};

/** Longer than a batch takes where all is well: who has just been refused looks at once. */
const flushMaxMs = 1_000;

export function requestLogRoutes({ database, clock, flush }: RequestLogRouteTools): Route[] {
  /** Older ones are gone for whoever looks, also before their day is dropped. */
  const since = () => lowestIdAt(clock.nowMs() - keptMs);
  return [
    defineRoute({
      method: 'GET',
      path: '/logs',
      operationId: 'listRequests',
      scope: 'logs:read',
      tag: 'Request log',
      summary: 'List requests that were made',
      description:
        'The refused requests of your organization, and a sample of the others, of the last 7 days, with what was refused and accepted by SMTP. What is refused for an invalid key belongs to nobody, and is not in it. Where there are very many of a kind, some are kept, and `left_out` says how many more there were.',
      query: Type.Object(
        {
          ...paginationParameters,
          source: Type.Optional(
            literals(loggedSources, { description: 'Requests of the API, or what came by SMTP.' }),
          ),
          method: Type.Optional(
            literals(['GET', 'HEAD', 'POST', 'PATCH', 'PUT', 'DELETE', 'AUTH', 'MAIL', 'RCPT', 'DATA'], {
              description: 'The last four are commands of SMTP; `DATA` is a message.',
            }),
          ),
          path: Type.Optional(
            Type.String({
              maxLength: 500,
              description: 'A path as it was asked for, or that of an operation: `/v1/contacts/:id`.',
            }),
          ),
          status: Type.Optional(
            Type.String({
              format: 'status-range',
              description: 'A status, or a class of them: `422`, `4xx`.',
            }),
          ),
          key_id: Type.Optional(Type.String({ format: 'uuid', description: 'The id of an API key.' })),
          request_id: Type.Optional(
            Type.String({ format: 'uuid', description: 'The `x-request-id` of an answer.' }),
          ),
          resource_id: Type.Optional(
            Type.String({ format: 'uuid', description: 'What was read, changed or made.' }),
          ),
        },
        { additionalProperties: false },
      ),
      isLookAtLog: true,
      success: { statusCode: 200, schema: listOf(listedRequest), when: 'A page of requests.' },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        await within(clock, flushMaxMs, flush(), undefined);
        const rows = await database.asOrganizations([organizationId], (transaction) =>
          store.listRequests(transaction, { organizationId, since: since(), filter: toFilter(query), page }),
        );
        return json(toList(rows, page, showListed));
      },
    }),
    defineRoute({
      method: 'GET',
      path: '/logs/:id',
      operationId: 'getRequest',
      scope: 'logs:read',
      tag: 'Request log',
      summary: 'Get a request that was made',
      description: 'By the `x-request-id` of its answer.',
      params: idParameter,
      isLookAtLog: true,
      success: { statusCode: 200, schema: requestRecord, when: 'The request.' },
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        await within(clock, flushMaxMs, flush(), undefined);
        const row = await database.asOrganizations([organizationId], (transaction) =>
          store.findRequest(transaction, { organizationId, since: since(), id }),
        );
        if (row === null) throw resourceNotFound();
        return json(show(row));
      },
    }),
  ];
}

/** To be handed to `createValidation`. */
export const requestLogFormats = {
  'status-range': {
    test: (text: string) => /^[1-5](?:\d\d|xx)$/.test(text),
    mustBe: 'a status such as 422, or a class such as 4xx',
  },
};

function toFilter(query: {
  source?: LoggedSource;
  method?: string;
  path?: string;
  status?: string;
  key_id?: string;
  request_id?: string;
  resource_id?: string;
}): store.RequestFilter {
  const { source, method, path, status, key_id: apiKeyId, request_id: id, resource_id: resourceId } = query;
  return {
    ...(source !== undefined && { source }),
    ...(method !== undefined && { method }),
    ...(path !== undefined && { path }),
    ...(status !== undefined && {
      status: { from: Number(status.replace('xx', '00')), to: Number(status.replace('xx', '99')) },
    }),
    ...(apiKeyId !== undefined && { apiKeyId }),
    ...(id !== undefined && { id }),
    ...(resourceId !== undefined && { resourceId }),
  };
}

function show(row: store.FoundRequest): RequestRecord {
  return { ...showListed(row), query: row.query, request_body: row.body };
}

function showListed(row: store.RequestRow): ListedRequest {
  return {
    id: row.id,
    created_at: row.created_at.toISOString(),
    source: row.source,
    method: row.method,
    path: row.path,
    route: row.route,
    status: row.status,
    error_name: row.error_name,
    message: row.message,
    api_key:
      row.api_key_id === null || row.api_key_name === null
        ? null
        : { id: row.api_key_id, name: row.api_key_name },
    remote_address: row.remote_address,
    user_agent: row.user_agent,
    ms: row.duration_ms,
    idempotency: row.idempotency_key === null ? null : { key: row.idempotency_key, replayed: row.is_replay },
    resource_id: row.resource_id,
    left_out: row.left_out,
  };
}
