import type { FastifyReply, FastifyRequest } from 'fastify';
import type { IncomingHttpHeaders } from 'node:http';
import { formatBytes } from '../bytes.ts';
import { now, sleep } from '../clock.ts';
import { isUuid } from '../ids.ts';
import type { Log } from '../log.ts';
import { type Secrets, sha256 } from '../secrets.ts';
import type { Share, Shares } from '../shares.ts';
import { apiPrefix, countOthers, tooManyRequests } from './admission.ts';
import type { AnswerPace, PacedAnswer } from './answer-pace.ts';
import { type BodyPool, collectInPlace } from './body-pool.ts';
import { type BodyReading, type CollectedBody, readBody } from './body-reader.ts';
import { type AskedReading, type BodyThread, largeBodyBytesMin } from './body-threads.ts';
import {
  badRequest,
  notFound,
  overloaded,
  PublicError,
  resourceNotFound,
  storageLimitReached,
  validationError,
} from './errors.ts';
import { keyConflict, readIdempotencyKey, type ScopedKey, toScopedKey } from './idempotency.ts';
import { canonicalJson, showKey } from './json-text.ts';
import { describeMethods, type KnownPath, type KnownPaths, listAllowed } from './known-paths.ts';
import { isCursor } from './pagination.ts';
import { redact } from './redaction.ts';
import { wrongContentType } from './refusals.ts';
import {
  type Caller,
  emptyBody,
  type FullStorage,
  isChange,
  noParameters,
  type Route,
  routeKey,
  type RouteResponse,
} from './route.ts';
import { readTraceId } from './trace.ts';
import { holdUnsent } from './unsent.ts';
import { isUnstorable, type RuleFacts, type Validation, type Validator } from './validation.ts';
import { headersFor, wireKey, type WireRoute } from './wire.ts';

/** A request of the API from its admission to its response. */

export type RouteServices = {
  log: Log;
  /** What the rules of fields ask of the settings. Left out: none of the routes has rules that ask. */
  ruleSettings?: () => RuleFacts['settings'];
  bodyThread: Pick<BodyThread, 'read'>;
  /** Hashes what a request was, where its answer is kept. */
  secrets: Pick<Secrets, 'keyedHash'>;
  /** Whether an answer to an earlier request is kept under this key. */
  isKeyUsed: (key: Omit<ScopedKey, 'fingerprint'>) => Promise<boolean>;
};

export type Checks = { params: Validator | null; query: Validator; body: Validator | null };

export function compileChecks(route: Route, validation: Validation): Checks {
  return {
    params: route.params && validation.compile(route.params),
    query: validation.compile(route.query ?? noParameters),
    body: route.body && validation.compile(route.body, { isChange: isChange(routeKey(route)) }),
  };
}

/** `holder` of a share is an organization. */
export type RouteTools = RouteServices &
  BodyPool & { knownPaths: KnownPaths; places: Shares; unsent: Shares; pace: AnswerPace };

export async function runRoute(
  tools: RouteTools,
  route: Route,
  checks: Checks,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<FastifyReply> {
  const { caller } = request;
  const { wire = null } = request.routeOptions.config;
  if (caller === null) throw new Error('a route was reached without admission');
  if (checks.params !== null && checks.params(request.params).length > 0) {
    // `GET /email/send`: the router takes a fixed name of another path for an id.
    const path = tools.knownPaths.find(request.url);
    throw path === null || path.pattern === `${apiPrefix}${route.path}`
      ? resourceNotFound()
      : noSuchMethod(request, path);
  }
  const asked = request.query as Record<string, unknown>; // Fastify's query parser gives text or lists of texts.
  const query = checkQuery(checks.query, route, wire?.translateQuery?.(asked) ?? asked);

  const collected = await collectInPlace(tools, request.raw, route.bodyBytesMax, caller.organizationId);
  let place: Share | null = null;
  let paced: PacedAnswer | null = null;
  let answerBytes = 0;
  let sent: unknown;
  try {
    place = tools.places.take(caller.organizationId, 1);
    if (place === null) throw tooManyRequests();
    const key = route.isIdempotent ? readIdempotencyKey(request.headers['idempotency-key']) : null;
    if (collected.length > 0 && request.hasOtherType) throw wrongContentType();
    const facts = { at: now(tools.clock), settings: tools.ruleSettings?.() ?? {} };
    const body = await readRouteBody(tools, route, checks, collected, {
      wantsCanonical: key !== null,
      facts,
      wire,
      headers: request.headers,
      onRead: (value) => (sent = value),
    });
    if (body.kind === 'invalid') throw await refuseBody(tools, route, caller, key, body.issues);
    if (route.addsStorage && caller.fullStorage)
      await refuseMore(tools, route, caller, caller.fullStorage, key);
    countOthers(route, body, request, reply);
    paced = await waitForTurn(tools, route, caller);
    const response = await route.handle({
      caller,
      params: lowerIds(request.params),
      query,
      body: body.value,
      prepared: body.prepared ?? null,
      idempotencyKey:
        key === null
          ? null
          : toScopedKey(tools.secrets, {
              organizationId: caller.organizationId,
              endpoint: wire === null ? routeKey(route) : wireKey(wire),
              key,
              params: request.params,
              bodyDigest: body.canonical,
            }),
      facts,
      traceId: readTraceId(request.headers.traceparent),
    });
    request.resourceId = idOf(response);
    const written = wire === null ? writeResponse(route, response) : writeAnswer(wire, response);
    answerBytes = written.body.length;
    return sendResponse(tools, request, reply, route, written);
  } catch (cause) {
    // At once: what was sent is let go of as soon as it is refused.
    if (route.body !== null) request.shownBody = redact(route.body, sent);
    throw cause;
  } finally {
    paced?.end(answerBytes);
    place?.release();
    collected.release();
  }
}

/** What changes something has no large answer, and never waits for those that have. */
async function waitForTurn(
  { clock, pace }: RouteTools,
  { method }: Route,
  { organizationId }: Caller,
): Promise<PacedAnswer | null> {
  pace.note(organizationId);
  if (method !== 'GET') return null;
  const paced = pace.begin(organizationId);
  if (paced === null) throw overloaded('Too much is being read at the moment.');
  if (paced.waitMs > 0) await sleep(clock, paced.waitMs);
  return paced;
}

/** A 404 as for any path that is not there, and no 405; sentence and `allow` say what there is instead. */
export function noSuchMethod({ method }: FastifyRequest, path: KnownPath): PublicError {
  return new PublicError(notFound, describeMethods(method, path), { allow: listAllowed(path) });
}

/** An id is written in lower case everywhere else. */
function lowerIds(params: unknown): unknown {
  return Object.fromEntries(
    Object.entries(params as Record<string, string>).map(([name, value]) => [
      name,
      isUuid(value) ? value.toLowerCase() : value,
    ]),
  );
}

function checkQuery(validate: Validator, route: Route, query: Readonly<Record<string, unknown>>): unknown {
  const given = withoutEmptyFilters(route, query);
  const repeated = Object.keys(given).filter((name) => Array.isArray(given[name]));
  const issues =
    repeated.length > 0
      ? repeated.map((name) => `${showKey(name)} must be given once`)
      : [
          ...validate(given),
          ...Object.keys(given).flatMap((name) =>
            isUnstorable(given[name]) ? [`${showKey(name)} must not contain NUL or unpaired surrogates`] : [],
          ),
        ];
  if (issues.length > 0) throw new PublicError(validationError, issues.join(', '));
  return given;
}

/**
 * A filter without a value is none: forms send those that nobody has filled in. A cursor without one is a mistake, since it
 * would begin the list anew for ever.
 */
function withoutEmptyFilters(
  { query }: Route,
  given: Readonly<Record<string, unknown>>,
): Record<string, unknown> {
  const isFilter = (name: string) => Object.hasOwn(query?.properties ?? {}, name) && !isCursor(name);
  return Object.fromEntries(Object.entries(given).filter(([name, value]) => value !== '' || !isFilter(name)));
}

async function readRouteBody(
  tools: RouteTools,
  route: Route,
  checks: Checks,
  body: CollectedBody,
  asked: {
    wantsCanonical: boolean;
    facts: RuleFacts;
    wire: WireRoute | null;
    headers: IncomingHttpHeaders;
    onRead: (value: unknown) => void;
  },
): Promise<Exclude<BodyReading, { kind: 'malformed' }>> {
  const { wantsCanonical, facts, wire, onRead } = asked;
  const validate = checks.body;
  if (validate === null) {
    const canonical = wantsCanonical ? sha256(canonicalJson(null)) : null;
    return { kind: 'valid', value: undefined, canonical };
  }
  const translate = wire?.translateBody ?? null;
  const headers = wire === null ? {} : headersFor(wire, asked.headers);
  const reading =
    body.length < largeBodyBytesMin
      ? readBody(
          body.length === 0 && route.isBodyOptional ? emptyObject : Buffer.concat(body.blocks),
          (value) => {
            onRead(value);
            return validate(value, facts);
          },
          wantsCanonical,
          translate && ((value) => translate(value, headers)),
        )
      : await readLargeBody(tools, body.blocks, {
          schemaKey: routeKey(route),
          wantsCanonical,
          facts,
          translation: wire === null || translate === null ? null : { key: wireKey(wire), headers },
        });
  if (reading.kind === 'malformed')
    throw new PublicError(badRequest, `The request is malformed: ${reading.problem}.`);
  if (reading.kind === 'valid') onRead(reading.value);
  return reading;
}

/**
 * For a route without fields: a request with fields differs for that alone from the one that its key was used with.
 * Other routes validate their fields before they look at the key.
 */
async function refuseBody(
  tools: RouteTools,
  route: Route,
  { organizationId }: Caller,
  key: string | null,
  issues: readonly string[],
): Promise<PublicError> {
  const isKeyUsed =
    key !== null &&
    route.body === emptyBody &&
    (await tools.isKeyUsed({ organizationId, endpoint: routeKey(route), key }));
  return isKeyUsed ? keyConflict('different_request') : new PublicError(validationError, issues.join(', '));
}

/** What was accepted before is answered as it was then. */
async function refuseMore(
  tools: RouteTools,
  route: Route,
  { organizationId }: Caller,
  fullStorage: FullStorage,
  key: string | null,
): Promise<void> {
  if (key !== null && (await tools.isKeyUsed({ organizationId, endpoint: routeKey(route), key }))) return;
  throw storageIsFull(fullStorage);
}

export function storageIsFull({ bytes, limitBytes }: FullStorage): PublicError {
  return new PublicError(
    storageLimitReached,
    `The organization stores ${formatBytes(bytes)} and may store ${formatBytes(limitBytes)}. Delete something, or have the limit raised; what is deleted counts when storage is measured again, in about an hour.`,
  );
}

const emptyObject = Buffer.from('{}');

async function readLargeBody(
  tools: RouteTools,
  blocks: readonly Buffer[],
  asked: AskedReading,
): Promise<BodyReading> {
  try {
    return await tools.bodyThread.read(blocks, asked);
  } catch (cause) {
    tools.log.error({ err: cause }, 'a large body could not be read');
    throw overloaded('The request body could not be read.');
  }
}

function sendResponse(
  { unsent }: RouteTools,
  { raw, caller }: FastifyRequest,
  reply: FastifyReply,
  route: Route,
  { statusCode, headers, body }: WrittenResponse,
): FastifyReply {
  if (!holdUnsent(reply.raw, unsent, caller?.organizationId ?? '', body.length)) {
    // What only reads can be refused still. What was carried out must not be called refused: its client has to take it
    // for a lost connection.
    if (route.method === 'GET') throw overloaded('Too many responses are waiting to be read at the moment.');
    raw.socket.destroy();
    return reply.hijack();
  }
  return reply
    .header('content-type', 'application/json; charset=utf-8')
    .headers({ ...headers })
    .code(statusCode)
    .send(body);
}

/** Of what was made. */
function idOf(response: RouteResponse): string | null {
  if (response.kind === 'written') return null;
  const id =
    response.kind === 'json'
      ? (response.body as { id?: unknown } | null)?.id
      : /^\{"id":"([0-9a-f-]{36})"/.exec(response.response.text)?.[1];
  return typeof id === 'string' && isUuid(id) ? id : null;
}

type WrittenResponse = { statusCode: number; headers: Readonly<Record<string, string>>; body: Buffer };

function writeResponse(route: Route, response: RouteResponse): WrittenResponse {
  const { statusCode } = route.success;
  switch (response.kind) {
    case 'json':
      return {
        statusCode: response.isThere === true ? 200 : statusCode,
        headers: response.headers,
        body: Buffer.from(JSON.stringify(response.body)),
      };
    case 'written':
      return { statusCode, headers: {}, body: toBuffer(response.json) };
    case 'stored': {
      const { text, headers } = response.response;
      const replayed = response.isReplay ? { 'idempotent-replayed': 'true' } : {};
      return {
        statusCode: response.response.statusCode,
        headers: { ...replayed, ...headers },
        body: Buffer.from(text),
      };
    }
  }
}

/** In the form of the service that the request was written for. */
function writeAnswer(wire: WireRoute, response: RouteResponse): WrittenResponse {
  const { headers, body } = writeResponse(wire.route, response);
  const answer = response.kind === 'json' ? response.body : (JSON.parse(body.toString()) as unknown);
  const shown = wire.showAnswer(answer);
  return { statusCode: shown.statusCode, headers, body: Buffer.from(JSON.stringify(shown.body)) };
}

function toBuffer({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}
