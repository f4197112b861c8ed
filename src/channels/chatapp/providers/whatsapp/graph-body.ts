import type { AnswerHeaders } from '../../../http1/exchange.ts';
import { parseJsonObject } from '../../../json-object.ts';
import { type JsonObject, listOf, objectOf, textOf } from './json.ts';

/** What we read of an answer of the Graph API. All of it is empty where the body is no JSON object. */

export type GraphHeaders = AnswerHeaders;

export type GraphError = {
  /** Null where the answer has no error that Graph has worded. */
  code: number | null;
  subcode: number | null;
  message: string;
  details: string | null;
  /** For authors of templates. */
  userTitle: string | null;
  userMessage: string | null;
  isTransient: boolean;
};

export type GraphBody = { json: JsonObject; error: GraphError; traceId: string | null };

export function readGraphBody({ body, headers }: { body: string | null; headers: GraphHeaders }): GraphBody {
  const json = parseJsonObject(body);
  const error = objectOf(json.error);
  return {
    json,
    error: readGraphError(error),
    traceId: traceOf(error.fbtrace_id) ?? traceOf(headers['x-fb-trace-id']),
  };
}

/** The same shape stands in statuses of webhooks. */
export function readGraphError(error: JsonObject): GraphError {
  return {
    code: integerOf(error.code),
    subcode: integerOf(error.error_subcode),
    message: textOf(error.message) ?? textOf(error.title) ?? '',
    details: textOf(objectOf(error.error_data).details),
    userTitle: textOf(error.error_user_title),
    userMessage: textOf(error.error_user_msg),
    isTransient: error.is_transient === true,
  };
}

function integerOf(value: unknown): number | null {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : null;
}

function traceOf(value: unknown): string | null {
  const text = textOf(value);
  return text !== null && /^[\w-]{1,64}$/.test(text) ? text : null;
}

const minuteMs = 60_000;
const regainMsMax = 3_600_000;

/** For how long the limits of calls keep an account out; absent if they do not. Graph counts in minutes. */
export function regainAccessMsOf(headers: GraphHeaders): number | undefined {
  const minutes = Math.max(0, ...usesOf(headers).map((use) => finiteOf(use.estimated_time_to_regain_access)));
  return minutes === 0 ? undefined : Math.min(minutes * minuteMs, regainMsMax);
}

/** How much of what an account or the app may call is used up, from 0 to 1. */
export function usedShareOf(headers: GraphHeaders): number {
  const percents = usesOf(headers).flatMap((use) =>
    [use.call_count, use.total_cputime, use.total_time].map(finiteOf),
  );
  return Math.max(0, ...percents) / 100;
}

/** Of some kinds of use for each account: https://developers.facebook.com/docs/graph-api/overview/rate-limiting */
const usesMax = 50;

function usesOf(headers: GraphHeaders): JsonObject[] {
  const byAccount = parseJsonObject(headers['x-business-use-case-usage'] ?? null);
  const ofApp = parseJsonObject(headers['x-app-usage'] ?? null);
  const lists = Object.values(byAccount).slice(0, usesMax).map(listOf);
  return [ofApp, ...lists.flatMap((list) => list.slice(0, usesMax)).map(objectOf)];
}

function finiteOf(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) ? value : 0;
}
