import fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import { createServer } from 'node:http';
import { type Clock, within } from '../clock.ts';
import type { NewId } from '../ids.ts';
import { createShares, type Shares } from '../shares.ts';
import { type Admission, type Admit, admitIfApi, type AdmissionTools, apiPrefix } from './admission.ts';
import { createAnswerPace, type PaceLimits } from './answer-pace.ts';
import { type ArrivalLimits, arrivingBody, defaultArrivalLimits, watchArrival } from './arrival.ts';
import { type BodyPool, type BodyPoolName, heldIn, type HeldInBodyPools } from './body-pool.ts';
import { declaredBytes } from './body-reader.ts';
import { shareConnections } from './connection-shares.ts';
import { badRequest, notFound, PublicError } from './errors.ts';
import { createKnownPaths, pathOf } from './known-paths.ts';
import { noteRequest, type NoteRequest } from './logged-request.ts';
import { addPage, createPageCounter, type PageTools } from './page-handler.ts';
import {
  answerUnparsable,
  mapFrameworkError,
  sendError,
  toPublicError,
  wrongContentType,
} from './refusals.ts';
import { handleInOrder, type PipelineLimits } from './response-order.ts';
import type { Caller, RequestHolder, Route, WebPage } from './route.ts';
import {
  compileChecks,
  noSuchMethod,
  type RouteServices,
  type RouteTools,
  runRoute,
} from './route-handler.ts';
import { readTraceId } from './trace.ts';
import type { Validation } from './validation.ts';
import type { Peer, WireRoute } from './wire.ts';

/**
 * The HTTP edge. A request is refused by the first of these that it fails, in this order: key (401), rate limit
 * (429), scope (403), body size and form (413, 400), idempotency header (400), schema and the rules of its fields, as
 * one (422). What is left reaches the route. Nothing of a refused body is kept, and every answer, also to a request that
 * Node.js could not even parse, is the error envelope.
 *
 * A request holds a place only while it makes progress. While its body arrives it holds one of the places for that, and
 * must keep coming (arrival.ts); it is worked on in a place of another kind. Of both, and of the bytes of large bodies,
 * an organization has a share (shares.ts), so that none can take all of them: a thousand requests that sent `{` and
 * nothing more used to block all others for two minutes. So has a network (network.ts) of the connections, whose
 * headers must be there in `headersTimeoutMs`, and of the places for bodies of pages, which have no key.
 */

export type HttpServerOptions = RouteServices & {
  host: string;
  port: number;
  /** Addresses or CIDR ranges whose `X-Forwarded-For` is believed. */
  trustedProxies: readonly string[];
  clock: Clock;
  newId: NewId;
  routes: readonly Route[];
  pages: readonly WebPage[];
  /** The API in the forms of other services. Left out: there are none. */
  wires?: readonly WireRoute[];
  validation: Validation;
  admit: Admit;
  /** Null when requests can be served, else what is missing. */
  findUnreadiness: () => Promise<string | null>;
  /**
   * What a load balancer need not act on, and an operator should: told with the readiness, and never instead of it. It
   * never rejects.
   */
  findDegradations?: () => Promise<readonly { kind: string; message: string }[]>;
  /** Called once for each request that is over. It must return at once. Left out: nothing is counted. */
  onAnswered?: (answered: AnsweredRequest) => void;
  /** Told of each request of a known organization. Left out: none is logged for it. */
  note?: NoteRequest;
  limits?: Partial<HttpLimits>;
};

/** `route` is a pattern, or `none`; `status` is null if the client left before its answer. */
export type AnsweredRequest = {
  method: string;
  route: string;
  status: number | null;
  durationMs: number;
};

export type HttpLimits = PipelineLimits & {
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
  /** Bodies of providers' reports that are arriving, and bytes of the large ones among them, of which a site has a share. */
  callbacksArrivingMax: number;
  callbackBytesMax: number;
  /** Bytes of responses that clients have not read yet: of the API by organization, of pages as many again by site. */
  unsentBytesMax: number;
  /** How fast an organization may read beside others. */
  pace: PaceLimits;
  /**
   * A connection on which nothing moves for so long is closed: a response that nobody reads would be kept for ever. Less
   * cuts off clients on slow lines, whose system takes in half a megabyte or so at a time (nginx waits as long).
   */
  stalledMs: number;
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
  pipelinedMax: 64,
  pipelinedTotalMax: 2_000,
  callbacksArrivingMax: 500,
  callbackBytesMax: 32 * 1_048_576,
  unsentBytesMax: 128 * 1_048_576,
  pace: { bytesPerSecond: 1_048_576, burstBytes: 4 * 1_048_576, waitMaxMs: 10_000 },
  stalledMs: 60_000,
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
  /** What requests of the API have shares of, for those who bring the same by another way. */
  lent: LentShares;
};

/** Places for bodies that arrive, their bytes, and places for those that are worked on, of which organizations have shares. */
export type LentShares = { bodies: BodyPool; places: Shares };

export type HeldByRequests = HeldInBodyPools & {
  admissions: number;
  requests: number;
  pipelined: number;
  unsentBytes: number;
  connections: number;
};

/** Throws if the port cannot be had. */
export async function startHttpServer(options: HttpServerOptions): Promise<HttpServer> {
  const limits = { ...defaultHttpLimits, ...options.limits };
  const state: ServerState = { admissions: 0, isStopping: false };
  const admission = { admit: options.admit, requestsMax: limits.requestsMax, state };
  let pipelined = () => 0;
  const app = fastify({
    // The server writes its own lines, one a request.
    logger: false,
    genReqId: () => options.newId(),
    // Of a request as a whole. Bodies have deadlines of their own, which end sooner.
    trustProxy: options.trustedProxies.length > 0 ? [...options.trustedProxies] : false,
    serverFactory: (handle) => {
      const { listener, held } = handleInOrder(handle, limits);
      pipelined = held;
      const server = createServer(
        {
          // Of a request as a whole. Bodies have deadlines of their own, which end sooner.
          requestTimeout: limits.headersTimeoutMs + 2 * limits.arrival.wholeMaxMs,
          headersTimeout: limits.headersTimeoutMs,
          keepAliveTimeout: keptAliveMs,
          connectionsCheckingInterval: 5_000,
          requireHostHeader: false, // Node.js would answer without an envelope; `addLifecycle` looks for itself.
        },
        listener,
      );
      server.timeout = limits.stalledMs;
      return server;
    },
    forceCloseConnections: 'idle',
    return503OnClosing: false,
    bodyLimit: Number.MAX_SAFE_INTEGER, // Bodies are collected, and limited, in body-reader.ts.
    // Longer than any request line: what is too long for an id is refused after the key, like any other non-id.
    routerOptions: { maxParamLength: 65_536 },
    clientErrorHandler: answerUnparsable,
    frameworkErrors: (cause, request, reply) => {
      reply.headers({
        'x-request-id': request.id,
        'x-content-type-options': 'nosniff',
        'cache-control': 'no-store',
      });
      beginLine(request, reply, options);
      void admitIfApi(request, reply, null, admission)
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
  addLifecycle(app, options, limits, admission);
  addBodyParsers(app);
  const pools = createBodyPools(options.clock, limits);
  const tools: RouteTools = {
    ...options,
    ...pools.routes,
    knownPaths: createKnownPaths(
      options.routes.map(({ method, path }) => ({ method, path: `${apiPrefix}${path}` })),
    ),
    places: createShares(limits.requestsMax),
    unsent: createShares(limits.unsentBytesMax),
    pace: createAnswerPace(options.clock, limits.pace),
  };
  const pageTools: PageTools = {
    ...pools.pages,
    unsent: createShares(limits.unsentBytesMax),
    count: createPageCounter(options.clock),
  };
  for (const page of options.pages)
    addPage(app, page, page.isCallback === true ? { ...pageTools, ...pools.callbacks } : pageTools);
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
  addWires(app, options.wires ?? [], (wire) => {
    const checks = compileChecks(wire.route, options.validation);
    return (request, reply) => runRoute(tools, wire.route, checks, request, reply);
  });
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
      ...heldIn(pools),
      pipelined: pipelined(),
      unsentBytes: tools.unsent.held() + pageTools.unsent.held(),
      connections: connections.held(),
    }),
    lent: { bodies: pools.routes, places: tools.places },
  };
}

function createBodyPools(clock: Clock, limits: HttpLimits): Record<BodyPoolName, BodyPool> {
  const createPool = (arrivingMax: number, bytesMax: number): BodyPool => ({
    arrival: limits.arrival,
    clock,
    arriving: createShares(arrivingMax),
    bytes: createShares(bytesMax),
  });
  return {
    routes: createPool(limits.arrivingMax, limits.largeBodyBytesMax),
    pages: createPool(limits.arrivingMax, limits.largeBodyBytesMax),
    callbacks: createPool(limits.callbacksArrivingMax, limits.callbackBytesMax),
  };
}

/** As Fastify has it: longer than load balancers keep a connection. */
const keptAliveMs = 72_000;

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

/** What a peer has beside its wire routes is answered in its form as well. */
function addWires(
  app: FastifyInstance,
  wires: readonly WireRoute[],
  handlerOf: (wire: WireRoute) => (request: FastifyRequest, reply: FastifyReply) => Promise<FastifyReply>,
): void {
  for (const wire of wires) {
    const { peer, method, path, route } = wire;
    app.route({ method, url: `${peer.prefix}${path}`, config: { route, wire }, handler: handlerOf(wire) });
  }
  for (const peer of new Set(wires.map((wire) => wire.peer)))
    app.all(`${peer.prefix}/*`, { config: { peer } }, ({ method, url }) => {
      throw peer.refuseUnknown({ method, path: pathOf(url).slice(peer.prefix.length) });
    });
}

/** `admissions` are requests whose organization is not known yet. */
type ServerState = { admissions: number; isStopping: boolean };

declare module 'fastify' {
  // eslint-disable-next-line @typescript-eslint/consistent-type-definitions -- an interface can be extended, a type cannot
  interface FastifyRequest {
    caller: Caller | null;
    /** Also of a request that is refused. */
    holder: RequestHolder | null;
    countMore: Admission['countMore'] | null;
    startedAtMs: number;
    errorName: string | null;
    errorMessage: string | null;
    /** What may be shown of the body of a refused request, and what was made by one that was not. */
    shownBody: string | null;
    resourceId: string | null;
    /** A content type other than JSON, or none: an error only if there is a body. */
    hasOtherType: boolean;
  }
  // eslint-disable-next-line @typescript-eslint/consistent-type-definitions -- as above
  interface FastifyContextConfig {
    route?: Route;
    page?: WebPage;
    /** Of a request in the form of another service, beside the route that carries it out. */
    wire?: WireRoute;
    /** Of a path that is not understood of that service. */
    peer?: Peer;
    /** As of a page: supervisors and load balancers ask every few seconds. */
    isRoutine?: boolean;
  }
}

function addLifecycle(
  app: FastifyInstance,
  options: HttpServerOptions,
  limits: HttpLimits,
  admission: AdmissionTools & { state: ServerState },
): void {
  app.decorateRequest('caller', null);
  app.decorateRequest('holder', null);
  app.decorateRequest('countMore', null);
  app.decorateRequest('startedAtMs', 0);
  app.decorateRequest('errorName', null);
  app.decorateRequest('errorMessage', null);
  app.decorateRequest('shownBody', null);
  app.decorateRequest('resourceId', null);
  app.decorateRequest('hasOtherType', false);

  app.addHook('onRequest', async (request, reply) => {
    beginLine(request, reply, options);
    reply.header('x-request-id', request.id);
    // Nothing that a key gives access to is kept on the way or guessed the type of. Pages have headers of their own.
    reply.headers({ 'x-content-type-options': 'nosniff', 'cache-control': 'no-store' });
    // Also with an error: a browser that cannot read its status takes it for no answer, and asks again.
    if (request.routeOptions.config.route?.isForBrowsers === true) reply.header(...anyOrigin);
    limitLeftovers(request, reply, options.clock, limits.arrival);
    const isHostless = request.raw.headers.host === undefined && request.raw.httpVersion === '1.1';
    await admitIfApi(
      request,
      reply,
      isHostless ? null : (request.routeOptions.config.route ?? null),
      admission,
    );
    if (isHostless) throw new PublicError(badRequest, 'The request has no Host header.');
  });
  app.addHook('onSend', (_request, reply, payload, done) => {
    // Also after requests that began earlier: a connection that is kept alive would keep the server from ending.
    if (admission.state.isStopping) reply.header('connection', 'close');
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
      watchArrival(arrivingBody(raw), clock, arrival, () => raw.socket.destroy()),
    );
  });
}

/** Not by Fastify's onResponse, which a client that leaves before its answer never brings about. */
function beginLine(request: FastifyRequest, reply: FastifyReply, options: HttpServerOptions): void {
  request.startedAtMs = options.clock.monotonicMs();
  reply.raw.once('close', () => {
    logRequest(request, reply, options);
  });
}

function logRequest(request: FastifyRequest, reply: FastifyReply, options: HttpServerOptions): void {
  const { config } = request.routeOptions;
  const isRoutine = config.page?.isRoutine ?? config.isRoutine ?? false;
  const isQuiet = isRoutine && reply.raw.writableFinished && reply.statusCode < 400;
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
  if (options.note !== undefined)
    noteRequest(options.note, request, reply, { durationMs, endedAtMs: options.clock.nowMs() });
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

/** A load balancer that asks whether to send requests here has other nodes to send them to. */
const readinessMaxMs = 2_000;

function addHealth(app: FastifyInstance, options: HttpServerOptions, state: ServerState): void {
  const config = { isRoutine: true };
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
