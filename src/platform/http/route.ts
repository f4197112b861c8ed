import { type Static, type TObject, type TSchema, Type } from 'typebox';
import type { ConstantContent } from './constant-content.ts';
import { type ErrorDefinition, storageLimitReached } from './errors.ts';
import type { ScopedKey, StoredResponse } from './idempotency.ts';
import type { RuleFacts } from './validation.ts';

/** Who is asking, as the role that serves the routes found out. `device` is set where it is one: `scopeOfDevices`. */
export type Caller = {
  organizationId: string;
  /** Left out where the request came with the secret of a device. */
  apiKeyId?: string;
  device?: CallingDevice;
  /** Set where the organization stores as much as it may, when its key was looked up. */
  fullStorage?: FullStorage | null;
};

/** Whose a request is, also of one that is refused for all that. `apiKey` is null where a device asks. */
export type RequestHolder = { organizationId: string; apiKey: { id: string; name: string } | null };

/** What an organization stores, which is its limit or more. */
export type FullStorage = { bytes: number; limitBytes: number };

export type CallingDevice = { id: string; installationId: string; contactId: string };

/** In place of a scope: the route is opened by the secret of a device, and by no API key. */
export const scopeOfDevices = 'device_secret';

export type RouteRequest<Params, Query, Body> = {
  caller: Caller;
  params: Params;
  query: Query;
  body: Body;
  /** What the route's preparation made of a large body (`body` is then null); else null. */
  prepared: unknown;
  /** Set where the route is idempotent and the client sent a key. */
  idempotencyKey: ScopedKey | null;
  /** What the rules of its fields went by. */
  facts: RuleFacts;
  /** The trace that the client says the request is part of, else null. */
  traceId: string | null;
};

/** `body` is written as JSON, which `written` is already; a replayed response goes out as it was stored, byte for byte. */
export type RouteResponse =
  | { kind: 'json'; body: unknown; headers: Readonly<Record<string, string>>; isThere?: boolean }
  | { kind: 'written'; json: Uint8Array }
  | { kind: 'stored'; response: StoredResponse; isReplay: boolean };

/** One operation of the API: what the server checks, what the documentation says, and what answers. */
export type Route = {
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  /** Below `/v1`, with `:id` for parameters. */
  path: string;
  /** Its name in generated clients and in the documentation: a verb and its object, `listContacts`. */
  operationId: string;
  /** Of an API key, or `scopeOfDevices`. */
  scope: string;
  tag: string;
  summary: string;
  description?: string;
  params: TObject | null;
  query: TObject | null;
  /** Null where a body would mean nothing, and none is read: GET and DELETE. `emptyBody` of a POST without fields. */
  body: TSchema | null;
  bodyBytesMax: number;
  /** A request without a body is one with an empty object. */
  isBodyOptional: boolean;
  isIdempotent: boolean;
  /**
   * Refused where the organization stores as much as it may. What changes, deletes, stops or reads something never is, nor
   * what a person may opt out by.
   */
  addsStorage: boolean;
  /**
   * Pages and workers of sites of any origin may call it (CORS). Only for what is opened with a device's own secret: an
   * API key has no place in a page.
   */
  isForBrowsers: boolean;
  /** What it shows is the log of requests, which would fill with those who look at it. */
  isLookAtLog: boolean;
  /**
   * Set where a request counts towards the limit of events and not of requests: as how many, by its body as `handle` gets
   * it. It counts as one before its body is known.
   */
  countEvents: CountOf | null;
  /** Set where one request counts as several, by its body in the same way. */
  countRequests: CountOf | null;
  success: {
    statusCode: 200 | 201 | 202;
    schema: TSchema;
    when: string;
    /** Of a creation: when it answers 200 with the same schema, since what was to be made is there. */
    whenThere?: string;
    /** What the answer may have besides the headers of every answer: names in lower case, and what they say. */
    headers?: Readonly<Record<string, string>>;
  };
  errors: readonly ErrorDefinition[];
  handle: (request: RouteRequest<unknown, unknown, unknown>) => Promise<RouteResponse>;
};

type CountOf = (request: Pick<RouteRequest<unknown, unknown, unknown>, 'body' | 'prepared'>) => number;

/** Of a POST that needs no fields: no body, or an object without fields. Both are the same request. */
export const emptyBody = Type.Object({}, { additionalProperties: false });

/** Of a route without parameters: one that is given all the same was meant for something. */
export const noParameters = Type.Object({}, { additionalProperties: false });

/** Bodies are small unless a route says otherwise. */
export const defaultBodyBytesMax = 1_048_576;

type RouteInput<Params extends TObject, Query extends TObject, Body extends TSchema> = Pick<
  Route,
  'method' | 'path' | 'operationId' | 'scope' | 'tag' | 'summary' | 'success'
> & {
  description?: string;
  params?: Params;
  query?: Query;
  body?: Body;
  bodyBytesMax?: number;
  isBodyOptional?: boolean;
  isIdempotent?: boolean;
  /** Of a POST and a PUT, unless this says otherwise. */
  addsStorage?: boolean;
  isForBrowsers?: boolean;
  isLookAtLog?: boolean;
  countEvents?: CountOf;
  countRequests?: CountOf;
  errors?: readonly ErrorDefinition[];
  handle: (request: RouteRequest<Static<Params>, Static<Query>, Static<Body>>) => Promise<RouteResponse>;
};

export function defineRoute<
  Params extends TObject = TObject,
  Query extends TObject = TObject,
  Body extends TSchema = TSchema,
>(input: RouteInput<Params, Query, Body>): Route {
  const { addsStorage = ['POST', 'PUT'].includes(input.method) } = input;
  const hasEmptyBody = input.method === 'POST' && input.body === undefined;
  return {
    ...input,
    params: input.params ?? null,
    query: input.query ?? null,
    body: input.body ?? (hasEmptyBody ? emptyBody : null),
    bodyBytesMax: input.bodyBytesMax ?? defaultBodyBytesMax,
    isBodyOptional: input.isBodyOptional ?? hasEmptyBody,
    isIdempotent: input.isIdempotent ?? false,
    addsStorage,
    isForBrowsers: input.isForBrowsers ?? false,
    isLookAtLog: input.isLookAtLog ?? false,
    countEvents: input.countEvents ?? null,
    countRequests: input.countRequests ?? null,
    errors: [...(input.errors ?? []), ...(addsStorage ? [storageLimitReached] : [])],
    // The server hands over only what these very schemas let through.
    handle: input.handle as Route['handle'],
  };
}

export function json(body: unknown, headers: Readonly<Record<string, string>> = {}): RouteResponse {
  return { kind: 'json', body, headers };
}

/** What was to be made is there already: see `whenThere`. */
export function there(body: unknown): RouteResponse {
  return { kind: 'json', body, headers: {}, isThere: true };
}

/** The key of a route in tables: idempotency scopes, schemas of the body thread, documentation. */
export function routeKey(route: Pick<Route, 'method' | 'path'>): string {
  return `${route.method} ${route.path}`;
}

/** Whether the body of the route says what is to change, so that a null in it clears a field. */
export function isChange(key: string): boolean {
  return key.startsWith('PATCH ');
}

/** A page outside of the API: no key, no version, its own rules of access. */
export type WebPage = {
  /** Every path with GET answers HEAD as well. */
  method?: 'GET' | 'POST' | 'DELETE';
  path: string;
  /** The largest form that may be posted; 4 kB if not given. */
  formBytesMax?: number;
  /** Set where the page takes a body that is no form, of at most so many bytes: it is in `body` then. */
  rawBytesMax?: number;
  /**
   * What is asked before a body is read, of a request without its body: what it resolves to is the response, and null lets
   * the body come.
   */
  refuse?: (request: PageRequest) => Promise<PageResponse | null>;
  /** How often it may be asked for; as `defaultPageRate` says if not given. */
  rate?: PageRate;
  /** A provider reports here: its bodies are apart from those of people. */
  isCallback?: boolean;
  /**
   * A page requests it by itself: its style, a picture, what is new every other second. Success is logged with `debug`,
   * or it would fill the log.
   */
  isRoutine?: boolean;
  handle: (request: PageRequest) => Promise<PageResponse>;
};

/**
 * In a minute, by all from one site (network.ts) together, or by all who have the same `:token`. All pages of one rate are
 * counted together.
 */
export type PageRate = { by: 'site' | 'token'; perMinute: number };

/** Ten a second: some windows with the sandbox, which ask every other second, and the gallery with all its pictures. */
export const defaultPageRate: PageRate = { by: 'site', perMinute: 600 };

export type PageRequest = {
  method: string;
  params: Readonly<Record<string, string>>;
  query: Readonly<Record<string, string>>;
  /** Parameters that were given more than once, and are not in `query`. */
  repeatedQuery: readonly string[];
  /** What was posted, read as a form whatever its content type says. Empty where the page takes no form. */
  form: URLSearchParams;
  /** The posted bytes, where the page takes no form. Empty otherwise. */
  body: Buffer;
  /** A header of the request, by its name in lower case. */
  header: (name: string) => string | undefined;
  remoteAddress: string;
  remotePort: number;
  /** Of the client as trusted proxies name it: what belongs to one site is counted together (network.ts). */
  site: string;
  /** Address and port on this machine that the connection came in at. */
  localAddress: string;
  localPort: number;
  /** `1.0` or `1.1`. */
  httpVersion: string;
  /** The `Host` header, which the client can set to anything. */
  host: string;
  /** What the client calls itself, which can be anything as well. */
  userAgent: string;
  /** What a browser says when it loads a page in advance: `prefetch`. Empty otherwise. */
  purpose: string;
  /** Whether a header shows that a proxy passed the request on. Without one there may still be a proxy. */
  isForwarded: boolean;
};

export type PageResponse = {
  statusCode: number;
  headers: Readonly<Record<string, string>>;
  body: PageBody;
};

/** What is the same for whoever asks goes out compressed, and as 304 to clients that have it. */
export type PageBody = string | Buffer | ConstantContent;
