import type { FastifyReply, FastifyRequest } from 'fastify';
import { isUuid } from '../ids.ts';
import { plainAddress } from '../network.ts';
import { apiPrefix } from './admission.ts';
import { maskText, redact } from './redaction.ts';
import type { RequestHolder } from './route.ts';

/** How it came in. */
export const loggedSources = ['api', 'smtp'] as const;

export type LoggedSource = (typeof loggedSources)[number];

/**
 * What an organization is told later of what it asked. It is made of a request that is over, of which nothing else is kept:
 * no header but two, and of the body no more than its schema allows (redaction.ts).
 */
export type LoggedRequest = {
  /** The `x-request-id` of its answer. */
  id: string;
  organizationId: string;
  startedAtMs: number;
  source: LoggedSource;
  apiKey: { id: string; name: string } | null;
  method: string;
  /** Without the query, and of its parameters only ids. */
  path: string;
  /** The pattern of the route; null where none takes the path. */
  route: string | null;
  /** JSON, as all that may be shown of it. */
  query: string | null;
  /** Null where the client left before its answer. */
  status: number | null;
  errorName: string | null;
  message: string | null;
  remoteAddress: string | null;
  userAgent: string | null;
  durationMs: number;
  idempotencyKey: string | null;
  isReplay: boolean;
  resourceId: string | null;
  /** JSON; null where it was accepted. */
  body: string | null;
};

/**
 * - `refused`: it counted towards the limit of requests, and failed then.
 * - `turned_away`: it was refused before that, or counts towards no limit that the organization has, so that there may be
 *   any number of them.
 * - `change` and `look`: it was carried out.
 */
export const loggedKinds = ['refused', 'turned_away', 'change', 'look'] as const;

export type LoggedKind = (typeof loggedKinds)[number];

/** Takes note of requests that are over. It returns at once, and asks for the description only where it keeps it. */
export type NoteRequest = (
  request: { organizationId: string; kind: LoggedKind },
  describe: () => LoggedRequest,
) => void;

export function noteRequest(
  note: NoteRequest,
  request: FastifyRequest,
  reply: FastifyReply,
  time: { durationMs: number; endedAtMs: number },
): void {
  const { holder } = request;
  if (holder === null) return;
  const kind = kindOf(request, reply, holder);
  if (kind === null) return;
  note({ organizationId: holder.organizationId, kind }, () => describeRequest(request, reply, holder, time));
}

/** Null of what is never logged: the reports of a million devices, and looks into the log. */
function kindOf(request: FastifyRequest, reply: FastifyReply, { apiKey }: RequestHolder): LoggedKind | null {
  const isCarriedOut = reply.raw.writableFinished && reply.statusCode < 400;
  if (!isCarriedOut) return request.caller === null || apiKey === null ? 'turned_away' : 'refused';
  if (apiKey === null || request.routeOptions.config.route?.isLookAtLog === true) return null;
  return request.method === 'GET' || request.method === 'HEAD' ? 'look' : 'change';
}

const pathLengthMax = 500;
const messageLengthMax = 2_000;
const userAgentLengthMax = 500;

function describeRequest(
  request: FastifyRequest,
  reply: FastifyReply,
  { organizationId, apiKey }: RequestHolder,
  { durationMs, endedAtMs }: { durationMs: number; endedAtMs: number },
): LoggedRequest {
  const { route = null, wire = null } = request.routeOptions.config;
  const pattern = wire === null ? route && `${apiPrefix}${route.path}` : `${wire.peer.prefix}${wire.path}`;
  const querySchema = route?.query ?? null;
  const { errorMessage: message, shownBody: body, resourceId } = request;
  const params = (request.params ?? {}) as Readonly<Record<string, unknown>>; // Fastify's: texts by their names.
  const key = request.headers['idempotency-key'];
  const userAgent = request.headers['user-agent'];
  return {
    id: request.id,
    organizationId,
    startedAtMs: endedAtMs - durationMs,
    source: 'api',
    apiKey,
    method: request.method.slice(0, 20),
    path: pattern === null ? showUnknownPath(request.raw.url ?? '') : showPath(pattern, params),
    route: pattern,
    query: querySchema === null ? null : redact(querySchema, request.query),
    status: reply.raw.writableFinished ? reply.statusCode : null,
    errorName: request.errorName,
    message: message === null ? null : maskText(cut(message, messageLengthMax)),
    // A device is a person's.
    remoteAddress: apiKey === null ? null : plainAddress(request.ip),
    userAgent:
      apiKey === null || userAgent === undefined ? null : maskText(cut(userAgent, userAgentLengthMax)),
    durationMs: Math.round(durationMs),
    idempotencyKey: typeof key === 'string' && route?.isIdempotent === true ? maskText(cut(key, 256)) : null,
    isReplay: reply.getHeader('idempotent-replayed') === 'true',
    resourceId: resourceId ?? idIn(params),
    body,
  };
}

/** What came by SMTP, as the log has it. The name that a client gives itself stands for its program. */
export function describeSubmitted(submitted: SubmittedRequest, durationMs: number): LoggedRequest {
  const { message, clientName, idempotencyKey } = submitted;
  return {
    ...submitted,
    source: 'smtp',
    path: smtpPath,
    route: null,
    query: null,
    message: message === null ? null : maskText(cut(message, messageLengthMax)),
    remoteAddress: plainAddress(submitted.remoteAddress),
    userAgent: clientName === '' ? null : maskText(cut(clientName, userAgentLengthMax)),
    durationMs: Math.round(durationMs),
    idempotencyKey: idempotencyKey === null ? null : maskText(cut(idempotencyKey, 256)),
  };
}

/** Has no path, and the log shows one for each. */
const smtpPath = 'smtp';

export type SubmittedRequest = Pick<
  LoggedRequest,
  | 'id'
  | 'organizationId'
  | 'startedAtMs'
  | 'apiKey'
  | 'method'
  | 'status'
  | 'errorName'
  | 'message'
  | 'idempotencyKey'
  | 'isReplay'
  | 'resourceId'
  | 'body'
> & { remoteAddress: string; clientName: string };

/** A text that is cut off would keep the whole in memory. */
function cut(text: string, lengthMax: number): string {
  return text.length <= lengthMax ? text : Buffer.from(text.slice(0, lengthMax - 1)).toString() + '…';
}

function showPath(pattern: string, params: Readonly<Record<string, unknown>>): string {
  return pattern.replaceAll(/:(\w+)/g, (_parameter, name: string) => {
    const value = params[name];
    return typeof value === 'string' && isUuid(value) ? value.toLowerCase() : '…';
  });
}

/** Of a path that there is not, words: anything else in it may be an address, or a key. */
function showUnknownPath(url: string): string {
  const path = url.slice(0, 2_000).replace(/[?#].*$/s, '');
  const shown = path
    .split('/')
    .map((part) =>
      part === 'v1' || part === '' || isUuid(part) || /^[a-z][a-z_-]{0,39}$/i.test(part) ? part : '…',
    )
    .join('/');
  return cut(shown, pathLengthMax);
}

function idIn({ id }: Readonly<Record<string, unknown>>): string | null {
  return typeof id === 'string' && isUuid(id) ? id.toLowerCase() : null;
}
