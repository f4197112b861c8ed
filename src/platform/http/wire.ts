import type { IncomingHttpHeaders } from 'node:http';
import type { PublicError } from './errors.ts';
import type { Route } from './route.ts';

/**
 * The API in the form of another service, for programs that were written for that one: a request is turned into one of a
 * route of ours, which is checked, counted and carried out as any other, and what it answers is turned back.
 */

/** A service whose form is understood. */
export type Peer = {
  /** Where its API begins: `/compat/resend`. */
  prefix: string;
  /** In lower case, the header that is an API key; left out: `authorization`, as ours. */
  keyHeader?: string;
  showError: (error: PublicError) => ShownAnswer;
  /** What a request is told whose path or method is not among those that are understood; said of the path below `prefix`. */
  refuseUnknown: (asked: { method: string; path: string }) => PublicError;
};

/** `body` is written as JSON. */
export type ShownAnswer = { statusCode: number; body: unknown };

/** Turns the body of a request into that of a route of ours, whose schema checks what comes out. It may be anything. */
export type BodyTranslation = (value: unknown, headers: IncomingHttpHeaders) => unknown;

export type WireRoute = {
  peer: Peer;
  method: Route['method'];
  /** Below the prefix of the peer, with `:id` for parameters. */
  path: string;
  /** What carries it out. */
  route: Route;
  /** Null where there is no body, or where it is of our form. */
  translateBody: BodyTranslation | null;
  /** Headers that the translation looks at, in lower case. */
  translatedHeaders?: readonly string[];
  /** Query parameters as the route has them; left out: as they came. */
  translateQuery?: (query: Readonly<Record<string, unknown>>) => Record<string, unknown>;
  /** `body` is that of our answer. */
  showAnswer: (body: unknown) => ShownAnswer;
};

/** The key of a wire route in tables, and its own place for idempotency keys. */
export function wireKey({ peer, method, path }: Pick<WireRoute, 'peer' | 'method' | 'path'>): string {
  return `${method} ${peer.prefix}${path}`;
}

/** Of the headers of a request, those that the translation looks at: what is sent to a thread is small. */
export function headersFor(
  { translatedHeaders = [] }: WireRoute,
  headers: IncomingHttpHeaders,
): IncomingHttpHeaders {
  return Object.fromEntries(translatedHeaders.map((name) => [name, headers[name]]));
}
