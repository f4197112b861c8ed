import fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import { type IncomingMessage, STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import { type Clock, now, within } from '../clock.ts';
import { isUuid, type NewId } from '../ids.ts';
import type { Log } from '../log.ts';
import { networkOf } from '../network.ts';
import { DatabaseUnavailableError, isConflict, isStatementTimeout } from '../postgres/database.ts';
import { type Secrets, sha256 } from '../secrets.ts';
import { createShares, type Share, type Shares } from '../shares.ts';
import { type ArrivalLimits, defaultArrivalLimits, watchArrival } from './arrival.ts';
import { type BodyReading, type CollectedBody, collectBody, declaredBytes, readBody } from './body-reader.ts';
import { type AskedReading, type BodyThread, largeBodyBytesMin } from './body-threads.ts';
import { shareConnections } from './connection-shares.ts';
import {
  badRequest,
  internalServerError,
  notFound,
  overloaded,
  PublicError,
  requestTimeout,
  resourceNotFound,
  serviceUnavailable,
  toEnvelope,
  unauthorized,
  validationError,
} from './errors.ts';
import { fingerprintsOf, keyConflict, readIdempotencyKey, type ScopedKey } from './idempotency.ts';
import { canonicalJson, showKey } from './json-text.ts';
import {
  createKnownPaths,
  describeMethods,
  type KnownPath,
  type KnownPaths,
  listAllowed,
  pathOf,
} from './known-paths.ts';
import type { RateVerdict } from './rate-limit.ts';
import {
  type Caller,
  emptyBody,
  type PageRequest,
  type Route,
  routeKey,
  type RouteResponse,
  type WebPage,
} from './route.ts';
import { readTraceId } from './trace.ts';
import { isUnstorable, type RuleFacts, type Validation, type Validator } from './validation.ts';

/**
 * The HTTP edge. A request is refused by the first of these that it fails, in this order: key (401), rate limit
 * (429), scope (403), body size and form (413, 400), idempotency header (400), schema and the rules of its fields, as
 * one (422). What is left reaches the route. Nothing of a refused body is kept, and every answer, also to a request that Node.js could not even
 * parse, is the error envelope.
 *
 * A request holds a place only while it makes progress. While its body arrives it holds one of the places for that, and
 * must keep coming (arrival.ts); it is worked on in a place of another kind. Of both, and of the bytes of large bodies,
 * an organization has a share (shares.ts), so that none can take all of them: a thousand requests that sent `{` and
 * nothing more used to block all others for two minutes. So has a network (network.ts) of the connections, whose
 * headers must be there in `headersTimeoutMs`, and of the places for bodies of pages, which have no key.
 */

export type Admission = {
  rate: RateVerdict | null;
  result: Caller | PublicError;
  /** Counts what a request turns out to ask for beyond the one that it was admitted as. */
  countMore?: (amount: number) => CountedMore;
};

/** `error` is what the request is refused with where that is too much. */
export type CountedMore = { rate: RateVerdict; error: PublicError | null };

export type HttpServerOptions = {
  host: string;
  port: number;
  /** Addresses or CIDR ranges whose `X-Forwarded-For` is believed. */
  trustedProxies: readonly string[];
  log: Log;
  clock: Clock;
  newId: NewId;
  routes: readonly Route[];
  pages: readonly WebPage[];
  validation: Validation;
  /** What the rules of fields ask of the settings. Left out: none of the routes has rules that ask. */
  ruleSettings?: () => RuleFacts['settings'];
  bodyThread: Pick<BodyThread, 'read'>;
  /** Who is asking, whether they ask too often, and whether they may: any key will do where no scope is required. */
  admit: (request: {
    authorization: string;
    address: string;
    scope: string | null;
    countsAs: 'request' | 'event';
  }) => Promise<Admission>;
  /** Hashes what a request was, where its answer is kept. */
  secrets: Pick<Secrets, 'keyedHash'>;
  /** Whether an answer to an earlier request is kept under this key. */
  isKeyUsed: (key: Omit<ScopedKey, 'fingerprint'>) => Promise<boolean>;
  /** Null when requests can be served, else what is missing. */
  findUnreadiness: () => Promise<string | null>;
  /**
   * What a load balancer need not act on, and an operator should: told with the readiness, and never instead of it. It
   * never rejects.
   */
  findDegradations?: () => Promise<readonly { kind: string; message: string }[]>;
  /** Called once for each request that is over. It must return at once. Left out: nothing is counted. */
  onAnswered?: (answered: AnsweredRequest) => void;
  limits?: Partial<HttpLimits>;
};

/** `route` is a pattern, or `none`; `status` is null if the client left before its answer. */
export type AnsweredRequest = {
  method: string;
  route: string;
  status: number | null;
  durationMs: number;
};

export type HttpLimits = {
  /**
   * Beyond them 503; an organization alone can have half of them. More would only wait for the database, and be
   * answered too late.
   */
  requestsMax: number;
  /** Bodies that are arriving, those of pages counted for themselves. More is memory: up to 64 kB each. */
  arrivingMax: number;
  /** Bytes of large bodies in memory at once; each costs several times its size while it is worked on. */
  largeBodyBytesMax: number;
  connectionsMax: number;
  headersTimeoutMs: number;
  arrival: ArrivalLimits;
  /** How long a stopping server goes on answering, closing each connection after its response. */
  drainMs: number;
};

export const defaultHttpLimits: HttpLimits = {
  requestsMax: 2_000,
  arrivingMax: 2_000,
  largeBodyBytesMax: 128 * 1_048_576,
  connectionsMax: 8_192,
  headersTimeoutMs: 15_000,
  arrival: defaultArrivalLimits,
  drainMs: 1_000,
};

export type HttpServer = {
  /** The address that it listens on, for example `http://127.0.0.1:8025`. */
  url: string;
  /** Lets every request that was begun be answered, then closes. `at_once` leaves out the time of `drainMs`. */
  stop: (how?: 'at_once') => Promise<void>;
  /** How much is held of each limit: nothing of any once all requests are over, or something was not given back. */
  held: () => HeldByRequests;
};

export type HeldByRequests = {
  admissions: number;
  requests: number;
  arriving: number;
  arrivingForms: number;
  largeBodyBytes: number;
  connections: number;
};

/** Throws if the port cannot be had. */
export async function startHttpServer(options: HttpServerOptions): Promise<HttpServer> {
  const limits = { ...defaultHttpLimits, ...options.limits };
  const state: ServerState = { admissions: 0, isStopping: false };
  const app = fastify({
    // The server writes its own lines, one a request.
    logger: false,
    genReqId: () => options.newId(),
    // Of a request as a whole. Bodies have deadlines of their own, which end sooner.
    requestTimeout: limits.headersTimeoutMs + 2 * limits.arrival.wholeMaxMs,
    trustProxy: options.trustedProxies.length > 0 ? [...options.trustedProxies] : false,
    http: {
      headersTimeout: limits.headersTimeoutMs,
      connectionsCheckingInterval: 5_000,
      requireHostHeader: false, // Node.js would answer without an envelope; `addLifecycle` looks for itself.
    },
    forceCloseConnections: 'idle',
    return503OnClosing: false,
    bodyLimit: Number.MAX_SAFE_INTEGER, // Bodies are collected, and limited, in body-reader.ts.
    // Longer than any request line: what is too long for an id is refused after the key, like any other non-id.
    routerOptions: { maxParamLength: 65_536 },
    clientErrorHandler: answerUnparsable,
    frameworkErrors: (cause, request, reply) => {
      reply.header('x-request-id', request.id);
      void admitIfApi(request, reply, null, { options, limits, state })
        .then(
          () => mapFrameworkError(cause),
          (failure: unknown) => toPublicError(failure, request, options.log),
        )
        .then((error) => {
          sendError(reply, error);
        });
    },
  });
  app.server.maxConnections = limits.connectionsMax;
  // Unknown expectations may be ignored (RFC 9110 §10.1.1); Node.js would refuse them without an envelope.
  app.server.on('checkExpectation', (request, response) => {
    app.server.emit('request', request, response);
  });

  const connections = shareConnections(app.server, limits.connectionsMax);
  addLifecycle(app, options, limits, state);
  addBodyParsers(app);
  const tools: RouteTools = {
    ...options,
    arrival: limits.arrival,
    knownPaths: createKnownPaths(
      options.routes.map(({ method, path }) => ({ method, path: `${apiPrefix}${path}` })),
    ),
    places: createShares(limits.requestsMax),
    arriving: createShares(limits.arrivingMax),
    bytes: createShares(limits.largeBodyBytesMax),
  };
  const pageTools: PageTools = { ...tools, arriving: createShares(limits.arrivingMax) };
  for (const page of options.pages) addPage(app, page, pageTools);
  addHealth(app, options, state);
  for (const route of options.routes) {
    const checks = compileChecks(route, options.validation);
    app.route({
      method: route.method,
      url: `${apiPrefix}${route.path}`,
      config: { route },
      handler: (request, reply) => runRoute(tools, route, checks, request, reply),
    });
    if (route.isForBrowsers) addPreflight(app, route);
  }
  app.setNotFoundHandler((request, reply) => {
    const path = tools.knownPaths.find(request.url);
    sendError(
      reply,
      path === null ? new PublicError(notFound, 'There is no such route.') : noSuchMethod(request, path),
    );
  });
  app.setErrorHandler((cause, request, reply) => {
    sendError(reply, toPublicError(cause, request, options.log));
  });

  const url = await app.listen({ host: options.host, port: options.port });
  return {
    url,
    stop: async (how) => {
      state.isStopping = true;
      await new Promise<void>((resolve) => {
        if (limits.drainMs === 0 || how === 'at_once') resolve();
        else options.clock.after(limits.drainMs, resolve);
      });
      await app.close();
    },
    held: () => ({
      admissions: state.admissions,
      requests: tools.places.held(),
      arriving: tools.arriving.held(),
      arrivingForms: pageTools.arriving.held(),
      largeBodyBytes: tools.bytes.held(),
      connections: connections.held(),
    }),
  };
}

/** Nothing that a page may then read depends on who looks at it: no request of ours is opened by a cookie. */
const anyOrigin = ['access-control-allow-origin', '*'] as const;

/** What a browser asks before it calls a route from another site, without the secret that the call itself has. */
function addPreflight(app: FastifyInstance, { method, path }: Route): void {
  app.options(`${apiPrefix}${path}`, (_request, reply) =>
    reply
      .code(204)
      .header(...anyOrigin)
      .headers({
        'access-control-allow-methods': method,
        'access-control-allow-headers': 'authorization, content-type',
        // Browsers keep it for two hours to a day.
        'access-control-max-age': '86400',
      })
      .send(),
  );
}

/** What every path of the API begins with. */
const apiPrefix = '/v1';

/** `admissions` are requests whose organization is not known yet. */
type ServerState = { admissions: number; isStopping: boolean };

declare module 'fastify' {
  // eslint-disable-next-line @typescript-eslint/consistent-type-definitions -- an interface can be extended, a type cannot
  interface FastifyRequest {
    caller: Caller | null;
    countMore: Admission['countMore'] | null;
    startedAtMs: number;
    errorName: string | null;
    /** A content type other than JSON, or none: an error only if there is a body. */
    hasOtherType: boolean;
  }
  // eslint-disable-next-line @typescript-eslint/consistent-type-definitions -- as above
  interface FastifyContextConfig {
    route?: Route;
    page?: WebPage;
    /** As of a page: supervisors and load balancers ask every few seconds. */
    isPolled?: boolean;
  }
}

function addLifecycle(
  app: FastifyInstance,
  options: HttpServerOptions,
  limits: HttpLimits,
  state: ServerState,
): void {
  app.decorateRequest('caller', null);
  app.decorateRequest('countMore', null);
  app.decorateRequest('startedAtMs', 0);
  app.decorateRequest('errorName', null);
  app.decorateRequest('hasOtherType', false);

  app.addHook('onRequest', async (request, reply) => {
    request.startedAtMs = options.clock.monotonicMs();
    reply.header('x-request-id', request.id);
    // Also with an error: a browser that cannot read its status takes it for no answer, and asks again.
    if (request.routeOptions.config.route?.isForBrowsers === true) reply.header(...anyOrigin);
    // Not Fastify's onResponse, which a client that leaves before its answer never brings about.
    reply.raw.once('close', () => {
      logRequest(request, reply, options);
    });
    limitLeftovers(request, reply, options.clock, limits.arrival);
    const isHostless = request.raw.headers.host === undefined && request.raw.httpVersion === '1.1';
    await admitIfApi(request, reply, isHostless ? null : (request.routeOptions.config.route ?? null), {
      options,
      limits,
      state,
    });
    if (isHostless) throw new PublicError(badRequest, 'The request has no Host header.');
  });
  app.addHook('onSend', (_request, reply, payload, done) => {
    // Also after requests that began earlier: a connection that is kept alive would keep the server from ending.
    if (state.isStopping) reply.header('connection', 'close');
    done(null, payload);
  });
}

/**
 * What a client still sends after its response is read and thrown away as long as it keeps coming, so that the client
 * gets to read the response.
 */
function limitLeftovers(
  { raw }: FastifyRequest,
  reply: FastifyReply,
  clock: Clock,
  arrival: ArrivalLimits,
): void {
  reply.raw.once('finish', () => {
    if (raw.complete) return;
    raw.once(
      'close',
      watchArrival(raw, clock, arrival, () => raw.socket.destroy()),
    );
  });
}

function tooManyRequests(): PublicError {
  return overloaded('Too many requests are being processed at the moment.');
}

function logRequest(request: FastifyRequest, reply: FastifyReply, options: HttpServerOptions): void {
  const { config } = request.routeOptions;
  const isPolled = config.page?.isPolled ?? config.isPolled ?? false;
  const isQuiet = isPolled && reply.raw.writableFinished && reply.statusCode < 400;
  const durationMs = options.clock.monotonicMs() - request.startedAtMs;
  const status = reply.raw.writableFinished ? reply.statusCode : undefined;
  options.log[isQuiet ? 'debug' : 'info'](
    {
      request_id: request.id,
      trace_id: readTraceId(request.headers.traceparent) ?? undefined,
      organization_id: request.caller?.organizationId,
      method: request.method,
      route: config.route?.path ?? config.url,
      status,
      error: request.errorName ?? undefined,
      ms: Math.round(durationMs),
    },
    reply.raw.writableFinished ? 'request' : 'request whose client left',
  );
  options.onAnswered?.({
    method: request.method,
    route: request.routeOptions.url ?? 'none',
    status: status ?? null,
    durationMs,
  });
}

type AdmissionTools = { options: HttpServerOptions; limits: HttpLimits; state: ServerState };

/**
 * A request that reaches no route counts for its organization as any other does, and its response says what is left of
 * the limit. Without a valid key there is no organization, and it is refused as any unknown path is.
 */
async function admitIfApi(
  request: FastifyRequest,
  reply: FastifyReply,
  route: Route | null,
  { options, limits, state }: AdmissionTools,
): Promise<void> {
  if (route === null && !isBelowApi(request.raw.url ?? '')) return;
  if (state.admissions >= limits.requestsMax) throw tooManyRequests();
  state.admissions += 1;
  try {
    await admit(request, reply, route, options);
  } finally {
    state.admissions -= 1;
  }
}

function isBelowApi(url: string): boolean {
  const path = pathOf(url);
  return path === apiPrefix || path.startsWith(`${apiPrefix}/`);
}

async function admit(
  request: FastifyRequest,
  reply: FastifyReply,
  route: Route | null,
  options: HttpServerOptions,
): Promise<void> {
  const admission = await options.admit({
    authorization: readAuthorization(request.raw),
    address: request.ip,
    scope: route?.scope ?? null,
    countsAs: route?.countEvents ? 'event' : 'request',
  });
  if (admission.rate !== null) tellRate(reply, admission.rate);
  request.countMore = admission.countMore ?? null;
  const { result } = admission;
  if (!(result instanceof PublicError)) request.caller = result;
  else if (route !== null || result.definition !== unauthorized) throw result;
}

function tellRate(reply: FastifyReply, { limit, remaining, resetSeconds }: RateVerdict): void {
  reply.headers({
    'ratelimit-limit': limit,
    'ratelimit-remaining': remaining,
    'ratelimit-reset': resetSeconds,
  });
}

/** A request with more than one event counts as all of them, or is refused as a whole. */
function countOtherEvents(
  { countEvents }: Route,
  body: { value: unknown; prepared?: unknown },
  request: FastifyRequest,
  reply: FastifyReply,
): void {
  const others = (countEvents?.({ body: body.value, prepared: body.prepared ?? null }) ?? 1) - 1;
  const counted = others > 0 ? request.countMore?.(others) : undefined;
  if (counted === undefined) return;
  const { rate, error } = counted;
  tellRate(reply, rate);
  if (error !== null) throw error;
}

/** The key of `Authorization: Bearer <key>`, or an empty text; of two such headers neither is believed. */
function readAuthorization(request: IncomingMessage): string {
  const headers = request.rawHeaders;
  let count = 0;
  for (let index = 0; index < headers.length; index += 2) {
    if (headers[index]?.toLowerCase() === 'authorization') count += 1;
  }
  const match = count === 1 ? /^Bearer +(\S+)$/i.exec(request.headers.authorization ?? '') : null;
  return match?.[1] ?? '';
}

/** Bodies are collected by `runRoute`, which knows the route's limits; this only says which types are accepted. */
function addBodyParsers(app: FastifyInstance): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', (_request, _payload, done) => {
    done(null);
  });
  app.addContentTypeParser('*', (request, payload, done) => {
    const { route, page } = request.routeOptions.config;
    // Whether there is a body at all is seen at its end where no length is declared.
    const bytes = declaredBytes(request.raw);
    const isRefused = route !== undefined && bytes !== null && bytes > 0;
    request.hasOtherType = route !== undefined;
    // Forms come in two types, and mail providers post without any.
    if (page === undefined && (route === undefined || isRefused)) payload.resume();
    done(isRefused ? wrongContentType() : null);
  });
}

function wrongContentType(): PublicError {
  return new PublicError(badRequest, 'The Content-Type must be application/json.');
}

type Checks = { params: Validator | null; query: Validator | null; body: Validator | null };

function compileChecks(route: Route, validation: Validation): Checks {
  return {
    params: route.params && validation.compile(route.params),
    query: route.query && validation.compile(route.query),
    body: route.body && validation.compile(route.body),
  };
}

/** `holder` of a share is an organization. */
type RouteTools = HttpServerOptions & {
  arrival: ArrivalLimits;
  knownPaths: KnownPaths;
  places: Shares;
  arriving: Shares;
  bytes: Shares;
};

async function runRoute(
  tools: RouteTools,
  route: Route,
  checks: Checks,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<FastifyReply> {
  const { caller } = request;
  if (caller === null) throw new Error('a route was reached without admission');
  if (checks.params !== null && checks.params(request.params).length > 0) {
    // `GET /email/send`: the router takes a fixed name of another path for an id.
    const path = tools.knownPaths.find(request.url);
    throw path === null || path.pattern === `${apiPrefix}${route.path}`
      ? resourceNotFound()
      : noSuchMethod(request, path);
  }
  const query = checkQuery(checks.query, request.query);

  const collected = await collectInPlace(tools, request, route.bodyBytesMax, caller.organizationId);
  let place: Share | null = null;
  try {
    place = tools.places.take(caller.organizationId, 1);
    if (place === null) throw tooManyRequests();
    const key = route.isIdempotent ? readIdempotencyKey(request.headers['idempotency-key']) : null;
    if (collected.length > 0 && request.hasOtherType) throw wrongContentType();
    const facts = { at: now(tools.clock), settings: tools.ruleSettings?.() ?? {} };
    const body = await readRouteBody(tools, route, checks, collected, {
      wantsCanonical: key !== null,
      facts,
    });
    if (body.kind === 'invalid') throw await refuseBody(tools, route, caller, key, body.issues);
    countOtherEvents(route, body, request, reply);
    const response = await route.handle({
      caller,
      params: lowerIds(request.params),
      query,
      body: body.value,
      prepared: body.prepared ?? null,
      idempotencyKey:
        key === null ? null : scopeKey(tools.secrets, caller, route, request.params, key, body.canonical),
      facts,
      traceId: readTraceId(request.headers.traceparent),
    });
    return sendResponse(reply, route, response);
  } finally {
    place?.release();
    collected.release();
  }
}

/** A 404 as for any path that is not there, and no 405; sentence and `allow` say what there is instead. */
function noSuchMethod({ method }: FastifyRequest, path: KnownPath): PublicError {
  return new PublicError(notFound, describeMethods(method, path), { allow: listAllowed(path) });
}

/** Holds one of the places for bodies that arrive until it is there. */
async function collectInPlace(
  tools: Pick<RouteTools, 'arriving' | 'bytes' | 'arrival' | 'clock'>,
  { raw }: FastifyRequest,
  bytesMax: number,
  holder: string,
): Promise<CollectedBody> {
  const place = declaredBytes(raw) === 0 ? null : tools.arriving.take(holder, 1);
  if (declaredBytes(raw) !== 0 && place === null) {
    throw overloaded('Too many requests are arriving at the moment.');
  }
  try {
    return await collectBody(raw, { ...tools, bytesMax, holder });
  } finally {
    place?.release();
  }
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

function checkQuery(validate: Validator | null, query: unknown): unknown {
  const given = query as Record<string, unknown>; // Fastify's query parser gives text or lists of texts.
  if (validate === null) return given;
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

async function readRouteBody(
  tools: RouteTools,
  route: Route,
  checks: Checks,
  body: CollectedBody,
  { wantsCanonical, facts }: { wantsCanonical: boolean; facts: RuleFacts },
): Promise<Exclude<BodyReading, { kind: 'malformed' }>> {
  const validate = checks.body;
  if (validate === null) {
    const canonical = wantsCanonical ? sha256(canonicalJson(null)) : null;
    return { kind: 'valid', value: undefined, canonical };
  }
  const reading =
    body.length < largeBodyBytesMin
      ? readBody(
          body.length === 0 && route.isBodyOptional ? emptyObject : Buffer.concat(body.blocks),
          (value) => validate(value, facts),
          wantsCanonical,
        )
      : await readLargeBody(tools, body.blocks, { schemaKey: routeKey(route), wantsCanonical, facts });
  if (reading.kind === 'malformed')
    throw new PublicError(badRequest, `The request is malformed: ${reading.problem}.`);
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

/** A key is scoped to organization, method and route pattern; its fingerprint covers parameters and body. */
function scopeKey(
  secrets: HttpServerOptions['secrets'],
  caller: Caller,
  route: Route,
  params: unknown,
  key: string,
  canonicalBody: Buffer | null,
): ScopedKey {
  const canonicalParams = canonicalJson(params);
  return {
    organizationId: caller.organizationId,
    endpoint: routeKey(route),
    key,
    ...fingerprintsOf(
      secrets,
      sha256(Buffer.concat([Buffer.from(canonicalParams), Buffer.from('\n'), canonicalBody ?? Buffer.of()])),
    ),
  };
}

function sendResponse(reply: FastifyReply, route: Route, response: RouteResponse): FastifyReply {
  reply.header('content-type', 'application/json; charset=utf-8');
  if (response.kind === 'json') {
    return reply
      .headers({ ...response.headers })
      .code(route.success.statusCode)
      .send(JSON.stringify(response.body));
  }
  if (response.kind === 'written') return reply.code(route.success.statusCode).send(response.json);
  if (response.isReplay) reply.header('idempotent-replayed', 'true');
  const { statusCode, text, headers } = response.response;
  return reply
    .headers({ ...headers })
    .code(statusCode)
    .send(text);
}

function sendError(reply: FastifyReply, error: PublicError): void {
  reply.request.errorName = error.definition.name;
  void reply
    .code(error.definition.statusCode)
    .headers(error.headers)
    .header('content-type', 'application/json; charset=utf-8')
    .send(JSON.stringify(toEnvelope(error)));
}

function toPublicError(cause: unknown, request: FastifyRequest, log: Log): PublicError {
  if (cause instanceof PublicError) return cause;
  if (cause instanceof DatabaseUnavailableError) {
    log.warn({ request_id: request.id, err: cause }, 'database unavailable');
    return new PublicError(
      serviceUnavailable,
      'The service is temporarily unavailable. Try again in a moment.',
      {
        'retry-after': '1',
      },
    );
  }
  if (isConflict(cause) || isStatementTimeout(cause)) {
    log.warn({ request_id: request.id, err: cause }, 'a request stood in the way of others');
    return overloaded('Another request is changing the same data at the moment. Try again in a moment.');
  }
  if (
    cause instanceof Error &&
    'statusCode' in cause &&
    typeof cause.statusCode === 'number' &&
    cause.statusCode < 500
  ) {
    return mapFrameworkError(cause);
  }
  log.error({ request_id: request.id, err: cause }, 'request failed');
  return new PublicError(
    internalServerError,
    'Something went wrong on our side. The request id helps us to find it.',
  );
}

/** Fastify's own refusals (a URL that cannot be decoded, a length that does not fit): 400, without its words. */
function mapFrameworkError(cause: Error): PublicError {
  const code = 'code' in cause ? cause.code : undefined;
  if (code === 'FST_ERR_BAD_URL') return resourceNotFound();
  return new PublicError(badRequest, 'The request is malformed.');
}

/** How long a client that is refused before its request was read may take to read the answer. */
const lingerMs = 2_000;

/**
 * Requests that Node.js's parser gives up on. Headers that are too large cannot hold a key of ours, so that they
 * are answered like any other wrong key. What is still arriving is dropped for a while: a connection that is reset
 * at once takes the answer with it.
 */
function answerUnparsable(this: FastifyInstance, cause: Error & { code?: string }, socket: Socket): void {
  if (!socket.writable) {
    socket.destroy();
    return;
  }
  const error = errorOfUnparsable(cause.code);
  const body = JSON.stringify(toEnvelope(error));
  const { statusCode } = error.definition;
  const status = `${statusCode} ${STATUS_CODES[statusCode] ?? ''}`;
  socket.removeAllListeners('data');
  socket.on('data', () => undefined);
  socket.resume();
  socket.end(
    `HTTP/1.1 ${status}\r\ncontent-type: application/json; charset=utf-8\r\n` +
      `content-length: ${Buffer.byteLength(body)}\r\nx-request-id: unparsed\r\nconnection: close\r\n\r\n${body}`,
  );
  setTimeout(() => socket.destroy(), lingerMs).unref();
}

function errorOfUnparsable(code: string | undefined): PublicError {
  if (code === 'HPE_HEADER_OVERFLOW') {
    return new PublicError(unauthorized, 'The request headers are too large to hold a valid API key.');
  }
  return code === 'ERR_HTTP_REQUEST_TIMEOUT'
    ? new PublicError(requestTimeout, requestTimeout.when)
    : new PublicError(badRequest, 'The request is not valid HTTP.');
}

/**
 * What proxies, tunnels and content delivery networks add: the standard ones (RFC 7239, RFC 9110 §7.6.3, RFC 8586), and
 * those of nginx's and Apache's documentation, Cloudflare, Akamai, Fastly, Fly, Amazon, Azure, Google and Envoy.
 */
const forwardingHeader =
  /^(forwarded|via|cdn-loop|true-client-ip|client-ip|x-(real-ip|client-ip|cluster-client-ip|remote-(addr|ip)|original-(host|forwarded-for|url|uri)|amzn-trace-id|cloud-trace-context|proxy-.+|arr-.+|azure-.+|envoy-.+|forwarded(-.+)?)|(cf|fastly|fly|akamai)-.+)$/;

/** A form of a few fields. */
const defaultFormBytesMax = 4_096;

/** The places of the API's bodies are not these: the holder of one is a network. */
type PageTools = Pick<RouteTools, 'arriving' | 'bytes' | 'arrival' | 'clock'>;

function addPage(app: FastifyInstance, page: WebPage, tools: PageTools): void {
  const method = page.method ?? 'GET';
  app.route({
    method,
    url: page.path,
    config: { page },
    handler: async (request, reply) => {
      const { headers } = request;
      const posted = method === 'GET' ? nothingPosted : await readPosted(tools, request, page);
      try {
        const response = await page.handle({
          method: request.method,
          params: request.params as Record<string, string>,
          query: textsOnly(request.query as Record<string, unknown>),
          repeatedQuery: repeatedOf(request.query as Record<string, unknown>),
          form: posted.form,
          body: posted.body,
          header: (name) => {
            const value = headers[name];
            return Array.isArray(value) ? value.join(', ') : value;
          },
          remoteAddress: request.socket.remoteAddress ?? '',
          remotePort: request.socket.remotePort ?? 0,
          localAddress: request.socket.localAddress ?? '',
          localPort: request.socket.localPort ?? 0,
          httpVersion: request.raw.httpVersion,
          host: headers.host ?? '',
          userAgent: headers['user-agent'] ?? '',
          purpose: purposeHeaders.flatMap((name) => headers[name] ?? []).join(' '),
          isForwarded: Object.keys(headers).some((name) => forwardingHeader.test(name)),
        });
        return reply.code(response.statusCode).headers(response.headers).send(response.body);
      } finally {
        posted.release();
      }
    },
  });
}

const purposeHeaders = ['sec-purpose', 'purpose', 'x-purpose', 'x-moz'];

type Posted = Pick<PageRequest, 'form' | 'body'> & { release: () => void };

const nothingPosted: Posted = {
  form: new URLSearchParams(),
  body: Buffer.of(),
  release: () => undefined,
};

/** Bytes that are kept as they came are counted until they are released. */
async function readPosted(
  tools: PageTools,
  request: FastifyRequest,
  { rawBytesMax, formBytesMax = defaultFormBytesMax }: WebPage,
): Promise<Posted> {
  const holder = networkOf(request.ip);
  const { blocks, release } = await collectInPlace(tools, request, rawBytesMax ?? formBytesMax, holder);
  if (rawBytesMax !== undefined) return { ...nothingPosted, body: Buffer.concat(blocks), release };
  release();
  return { ...nothingPosted, form: new URLSearchParams(Buffer.concat(blocks).toString('utf8')) };
}

function textsOnly(query: Readonly<Record<string, unknown>>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(query).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
  );
}

/** A load balancer that asks whether to send requests here has other nodes to send them to. */
const readinessMaxMs = 2_000;

function repeatedOf(query: Readonly<Record<string, unknown>>): string[] {
  return Object.keys(query).filter((name) => typeof query[name] !== 'string');
}

function addHealth(app: FastifyInstance, options: HttpServerOptions, state: ServerState): void {
  const config = { isPolled: true };
  app.get('/healthz', { config }, async (_request, reply) => reply.send({ status: 'ok' }));
  // One look at a time: those that do not come to an end must not pile up.
  let looking: Promise<string | null> | null = null;
  const findUnreadiness = () => {
    looking ??= options.findUnreadiness().finally(() => (looking = null));
    return within(options.clock, readinessMaxMs, looking, 'the database does not answer');
  };
  app.get('/readyz', { config }, async (_request, reply) => {
    // Both at once: one after the other would take longer than whoever asks will wait.
    const degradations = options.findDegradations?.();
    const unreadiness = state.isStopping ? 'stopping' : await findUnreadiness();
    return unreadiness === null
      ? reply.send({ status: 'ready', degradations: (await degradations) ?? [] })
      : reply.code(503).send({ status: 'not ready', reason: unreadiness });
  });
}
