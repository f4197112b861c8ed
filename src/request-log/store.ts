import { dateOf } from '../platform/clock.ts';
import type { LoggedRequest, LoggedSource } from '../platform/http/logged-request.ts';
import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import { defineStatement } from '../platform/postgres/parameters.ts';
import { allOf, type Predicate, toPredicate } from '../platform/postgres/predicate.ts';

/** A request with the number of those that it stands for besides itself. */
export type LogEntry = { request: LoggedRequest; leftOut: number };

const columns = `id, created_at, source, api_key_id, api_key_name, method, path, route, query, status, error_name, message,
  remote_address, user_agent, duration_ms, idempotency_key, is_replay, resource_id, body, left_out`;

const insertRequests = defineStatement<readonly LogEntry[]>('request_log_insert', ({ rows }) => {
  const given = rows((entries: readonly LogEntry[]) => entries, {
    organization_id: ['uuid', ({ request }) => request.organizationId],
    id: ['uuid', ({ request }) => request.id],
    created_at: ['timestamptz', ({ request }) => dateOf(request.startedAtMs)],
    source: ['text', ({ request }) => request.source],
    api_key_id: ['uuid', ({ request }) => request.apiKey?.id ?? null],
    api_key_name: ['text', ({ request }) => request.apiKey?.name ?? null],
    method: ['text', ({ request }) => request.method],
    path: ['text', ({ request }) => request.path],
    route: ['text', ({ request }) => request.route],
    query: ['json', ({ request }) => request.query],
    status: ['smallint', ({ request }) => request.status],
    error_name: ['text', ({ request }) => request.errorName],
    message: ['text', ({ request }) => request.message],
    remote_address: ['inet', ({ request }) => request.remoteAddress],
    user_agent: ['text', ({ request }) => request.userAgent],
    duration_ms: ['integer', ({ request }) => request.durationMs],
    idempotency_key: ['text', ({ request }) => request.idempotencyKey],
    is_replay: ['boolean', ({ request }) => request.isReplay],
    resource_id: ['uuid', ({ request }) => request.resourceId],
    body: ['json', ({ request }) => request.body],
    left_out: ['integer', ({ leftOut }) => leftOut],
  });
  return `insert into request_log (organization_id, ${columns})
   select given.organization_id, ${columns.replaceAll(/\w+/g, 'given.$&')}
   from ${given('given')}
   join organizations o on o.id = given.organization_id and o.has_request_log
   on conflict do nothing`;
});

/**
 * Of organizations that have a log, and are not being deleted. Those that are there already stay: the answer to a commit
 * may have been lost.
 */
export async function insertLogEntries(connection: Connection, entries: readonly LogEntry[]): Promise<void> {
  const { statement, values } = insertRequests.bind(entries);
  await connection.rows(statement, values);
}

export type RequestFilter = {
  source?: LoggedSource;
  method?: string;
  /** The path as it was asked for, or the pattern of its route. */
  path?: string;
  /** From the first to the last. */
  status?: { from: number; to: number };
  apiKeyId?: string;
  id?: string;
  resourceId?: string;
};

export type RequestRow = {
  id: string;
  created_at: Date;
  source: LoggedSource;
  api_key_id: string | null;
  api_key_name: string | null;
  method: string;
  path: string;
  route: string | null;
  status: number | null;
  error_name: string | null;
  message: string | null;
  remote_address: string | null;
  user_agent: string | null;
  duration_ms: number;
  idempotency_key: string | null;
  is_replay: boolean;
  resource_id: string | null;
  left_out: number;
};

const listedColumns = `id, created_at, source, api_key_id, api_key_name, method, path, route, status, error_name, message,
  remote_address, user_agent, duration_ms, idempotency_key, is_replay, resource_id, left_out`;

/** What the index of refused requests holds. */
const isRefused = toPredicate('status >= 400');

/**
 * One row more than the page holds, of those that began after the id `since`. Planned at each run: by the primary key, which
 * is read until the page is full, or the index of refused requests, or that of resources.
 */
export async function listRequests(
  connection: Connection,
  wanted: { organizationId: string; since: string; filter: RequestFilter; page: Page },
): Promise<RequestRow[]> {
  const { organizationId, since, filter, page } = wanted;
  const values: unknown[] = [organizationId, since, cursorOf(page), page.limit + 1];
  const conditions: Predicate[] = [];
  const where = (write: (parameter: string) => string, value: unknown) => {
    if (value !== undefined) conditions.push(toPredicate(write(`$${values.push(value)}`)));
  };
  where((source) => `source = ${source}`, filter.source);
  where((method) => `method = ${method}`, filter.method);
  where((path) => `path = ${path} or route = ${path}`, filter.path);
  where((from) => `status >= ${from}`, filter.status?.from);
  where((to) => `status <= ${to}`, filter.status?.to);
  where((key) => `api_key_id = ${key}`, filter.apiKeyId);
  where((id) => `id = ${id}`, filter.id);
  where((resource) => `resource_id = ${resource}`, filter.resourceId);
  if (filter.status !== undefined && filter.status.from >= 400) conditions.push(isRefused);
  return connection.rows(
    unpreparedStatement<RequestRow>(
      `select ${listedColumns}
       from request_log
       where organization_id = $1 and id >= $2 and ${allOf(conditions)} ${pageClause(page, 'id', '$3')}
       limit $4`,
    ),
    values,
  );
}

export type FoundRequest = RequestRow & { query: Record<string, string> | null; body: object | null };

/** With what was sent; null if there is none that began after the id `since`. */
export async function findRequest(
  connection: Connection,
  { organizationId, since, id }: { organizationId: string; since: string; id: string },
): Promise<FoundRequest | null> {
  const [row] = await connection.rows(
    unpreparedStatement<FoundRequest>(
      `select ${listedColumns}, query, body
       from request_log
       where organization_id = $1 and id = $2 and id >= $3`,
    ),
    [organizationId, id, since],
  );
  return row ?? null;
}
