import type { FastifyReply, FastifyRequest } from 'fastify';
import type { IncomingMessage } from 'node:http';
import { overloaded, PublicError, unauthorized } from './errors.ts';
import { pathOf } from './known-paths.ts';
import type { RateVerdict } from './rate-limit.ts';
import type { Caller, RequestHolder, Route } from './route.ts';

/** Who asks for something of the API, and whether they may: what a request is refused for before its body is looked at. */

export type Admission = {
  rate: RateVerdict | null;
  result: Caller | PublicError;
  /** Left out where nobody knows whose the request is. */
  holder?: RequestHolder;
  /** Counts what a request turns out to ask for beyond the one that it was admitted as. */
  countMore?: (amount: number) => CountedMore;
};

/** `error` is what the request is refused with where that is too much. */
export type CountedMore = { rate: RateVerdict; error: PublicError | null };

/**
 * Who is asking, whether they ask too often, and whether they may: any key will do where no scope is required. Who only
 * shows a key, and asks for something later, is not counted.
 */
export type Admit = (request: {
  authorization: string;
  address: string;
  scope: string | null;
  countsAs: 'request' | 'event' | 'nothing';
}) => Promise<Admission>;

/** What every path of the API begins with. */
export const apiPrefix = '/v1';

/** `admissions` are requests whose organization is not known yet. */
export type AdmissionTools = { admit: Admit; requestsMax: number; state: { admissions: number } };

/**
 * A request that reaches no route counts for its organization as any other does, and its response says what is left of
 * the limit. Without a valid key there is no organization, and it is refused as any unknown path is.
 */
export async function admitIfApi(
  request: FastifyRequest,
  reply: FastifyReply,
  route: Route | null,
  { admit, requestsMax, state }: AdmissionTools,
): Promise<void> {
  if (route === null && !isBelowApi(request.raw.url ?? '')) return;
  if (state.admissions >= requestsMax) throw tooManyRequests();
  state.admissions += 1;
  try {
    await admitRequest(request, reply, route, admit);
  } finally {
    state.admissions -= 1;
  }
}

function isBelowApi(url: string): boolean {
  const path = pathOf(url);
  return path === apiPrefix || path.startsWith(`${apiPrefix}/`);
}

async function admitRequest(
  request: FastifyRequest,
  reply: FastifyReply,
  route: Route | null,
  admit: Admit,
): Promise<void> {
  const admission = await admit({
    authorization: readKey(request),
    address: request.ip,
    scope: route?.scope ?? null,
    countsAs: route?.countEvents ? 'event' : 'request',
  });
  if (admission.rate !== null) tellRate(reply, admission.rate);
  request.countMore = admission.countMore ?? null;
  request.holder = admission.holder ?? null;
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

/** A request that asks for several things counts as all of them, or is refused as a whole. */
export function countOthers(
  { countEvents, countRequests }: Route,
  body: { value: unknown; prepared?: unknown },
  request: FastifyRequest,
  reply: FastifyReply,
): void {
  const count = countEvents ?? countRequests;
  const others = (count?.({ body: body.value, prepared: body.prepared ?? null }) ?? 1) - 1;
  const counted = others > 0 ? request.countMore?.(others) : undefined;
  if (counted === undefined) return;
  const { rate, error } = counted;
  tellRate(reply, rate);
  if (error !== null) throw error;
}

/** Of a request in the form of another service, where that has it. */
function readKey({ raw, headers, routeOptions }: FastifyRequest): string {
  const { keyHeader } = routeOptions.config.wire?.peer ?? {};
  if (keyHeader === undefined) return readAuthorization(raw);
  const key = headers[keyHeader];
  return typeof key === 'string' ? key : '';
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

export function tooManyRequests(): PublicError {
  return overloaded('Too many requests are being processed at the moment.');
}
