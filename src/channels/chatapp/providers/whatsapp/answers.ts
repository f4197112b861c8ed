import { sanitiseDiagnostic } from '../../../diagnostic.ts';
import type { Answer } from '../../../http1/exchange.ts';
import type { RemoteReply } from '../../../outcome.ts';
import { waitOf } from '../../../retry-after.ts';
import type { ChatAppFailure, ChatAppFinding, ChatAppOutcome } from '../../provider.ts';
import { type GraphError, type GraphHeaders, readGraphBody, regainAccessMsOf } from './graph-body.ts';
import { listOf, objectOf, textOf } from './json.ts';

/**
 * What WhatsApp's error codes mean (https://developers.facebook.com/docs/whatsapp/cloud-api/support/error-codes). The
 * same codes are the answer to a hand-off and the reason in a status that comes later, so that each has one row. Only
 * the code decides: the words beside it change, and are for people.
 */

/**
 * - `rejected`: for good.
 * - `deferred`: another attempt may succeed, and counts.
 * - `postponed`: nothing was tried, as far as WhatsApp is concerned.
 * - `unavailable`: about the account or WhatsApp itself, and no message is to blame.
 */
export type MeaningKind = 'rejected' | 'deferred' | 'postponed' | 'unavailable';

export type Meaning = {
  kind: MeaningKind;
  /** What users read; in a status, whatever the kind. */
  failure: ChatAppFailure;
  words: string;
  /** Left out, the pause is as the caller makes it. */
  pauseMs?: number;
  /** What it says of the template, or of the account. */
  tells?:
    | 'paused'
    | 'disabled'
    | 'rejected'
    | 'unknown_template'
    | 'invalid_message'
    | 'own_fault'
    | 'unreachable'
    | 'stopped_marketing'
    | 'campaigns_held'
    | 'marketing_refused';
  /** As an answer: how often it is tried at most. */
  attemptsMax?: number;
  /** What must slow down: everything that leaves from the number, or what it writes to this person. */
  slows?: 'number' | 'pair';
};

type Row = readonly [
  number,
  MeaningKind,
  ChatAppFailure,
  string,
  Omit<Meaning, 'kind' | 'failure' | 'words'>?,
];

const minuteMs = 60_000;
const hourMs = 60 * minuteMs;
const held = { tells: 'campaigns_held' } as const;
/** Of what is wrong with a message, other than with its recipient or with the length of its values. */
const unfit = { tells: 'invalid_message' } as const;
/** Some of these errors never end, and say nothing of why: more attempts would only take the place of other messages. */
const unexplainedAttemptsMax = 4;

const rows: readonly Row[] = [
  // The credentials and what they permit.
  [0, 'unavailable', 'sender_rejected', 'The access token is not accepted'],
  [3, 'unavailable', 'sender_rejected', 'The app lacks a permission'],
  [10, 'unavailable', 'sender_rejected', 'The access token lacks a permission'],
  [33, 'unavailable', 'sender_rejected', 'The number is not there, or the access token may not use it'],
  [190, 'unavailable', 'sender_rejected', 'The access token has expired or was revoked'],
  [131005, 'unavailable', 'sender_rejected', 'The access token lacks a permission'],

  // The account.
  [368, 'unavailable', 'sender_rejected', 'The account is blocked for a violation of policy', held],
  [130497, 'rejected', 'sender_rejected', 'The account may not write to this country'],
  [131031, 'unavailable', 'sender_rejected', 'The account is locked', held],
  [131037, 'unavailable', 'sender_rejected', 'The name of the number is not approved'],
  [131042, 'unavailable', 'sender_rejected', 'There is a problem with the payment', held],
  [131044, 'unavailable', 'sender_rejected', 'There is a problem with the payment', held],
  [131045, 'unavailable', 'sender_rejected', 'The number is not registered'],
  [
    131063,
    'rejected',
    'sender_rejected',
    'Marketing is switched off for this account',
    { tells: 'marketing_refused' },
  ],
  [133006, 'unavailable', 'sender_rejected', 'The number is not verified'],
  [133010, 'unavailable', 'sender_rejected', 'The number is not registered'],

  // Too fast, or too much.
  [4, 'postponed', 'rate_limited', 'Too many requests of this app', { pauseMs: minuteMs }],
  [80007, 'postponed', 'rate_limited', 'Too many requests for this account', { pauseMs: minuteMs }],
  [130429, 'postponed', 'rate_limited', 'Too fast for this number', { pauseMs: 1_000, slows: 'number' }],
  [131056, 'postponed', 'rate_limited', 'Too many to this person', { pauseMs: 6_000, slows: 'pair' }],
  [131048, 'deferred', 'rate_limited', 'People have complained of this number', { pauseMs: hourMs, ...held }],
  [131064, 'deferred', 'rate_limited', 'Templates of a wrong category', { pauseMs: hourMs, ...held }],

  // WhatsApp itself.
  [1, 'deferred', 'other', 'An error of WhatsApp'],
  [2, 'unavailable', 'other', 'WhatsApp is away for a while'],
  [131000, 'deferred', 'other', 'An error of WhatsApp', { attemptsMax: unexplainedAttemptsMax }],
  [131016, 'unavailable', 'other', 'WhatsApp is overloaded'],
  [131057, 'unavailable', 'other', 'The account is under maintenance'],
  [133004, 'unavailable', 'other', 'WhatsApp is away for a while'],
  [135000, 'deferred', 'other', 'An error of WhatsApp', { attemptsMax: unexplainedAttemptsMax }],
  [2494100, 'unavailable', 'other', 'The account is being moved'],

  // The person. It is not said why somebody cannot be reached: no WhatsApp, terms not accepted, an old app.
  [131026, 'rejected', 'unreachable', 'Cannot be reached on WhatsApp', { tells: 'unreachable' }],
  [131030, 'rejected', 'other', 'The number may write to the numbers on its list for tests only'],
  [131049, 'rejected', 'blocked', 'WhatsApp chose not to deliver it to this person'],
  [
    131050,
    'rejected',
    'blocked',
    'The person has stopped marketing from this business',
    { tells: 'stopped_marketing' },
  ],
  [130472, 'rejected', 'blocked', 'The person is part of an experiment of WhatsApp'],

  // The message.
  [100, 'rejected', 'invalid_message', 'A parameter is not valid', unfit],
  [131008, 'rejected', 'invalid_message', 'A parameter is missing', unfit],
  [131009, 'rejected', 'invalid_message', 'A parameter has a wrong value', unfit],
  [131021, 'rejected', 'invalid_message', 'The recipient is the sender'],
  [
    131047,
    'rejected',
    'other',
    'More than 24 hours since the person wrote',
    // Templates may be sent at any time, and nothing else is.
    { tells: 'own_fault' },
  ],
  [131051, 'rejected', 'invalid_message', 'This type of message is not supported'],
  [131052, 'rejected', 'invalid_message', 'The media could not be loaded'],
  [131053, 'rejected', 'invalid_message', 'The media could not be stored'],
  [131062, 'rejected', 'invalid_message', 'A code cannot be sent to a person without a number'],
  [132000, 'rejected', 'invalid_message', 'The number of parameters is wrong', unfit],
  [132005, 'rejected', 'invalid_message', 'The text is too long with its values'],
  [132012, 'rejected', 'invalid_message', 'A parameter has a wrong form', unfit],
  [132018, 'rejected', 'invalid_message', 'A parameter has a wrong form', unfit],

  // The template.
  [
    132001,
    'rejected',
    'template_unavailable',
    'There is no such template in this language',
    { tells: 'unknown_template' },
  ],
  [132007, 'rejected', 'template_unavailable', 'The template violates a policy', { tells: 'rejected' }],
  [
    132015,
    'deferred',
    'template_unavailable',
    'The template is paused for its quality',
    { pauseMs: hourMs / 2, tells: 'paused' },
  ],
  [
    132016,
    'rejected',
    'template_unavailable',
    'The template is disabled for its quality',
    { tells: 'disabled' },
  ],
  [132068, 'rejected', 'other', 'The flow is blocked'],
  [132069, 'rejected', 'other', 'The flow is throttled'],
];

const meanings: ReadonlyMap<number, Meaning> = new Map(
  rows.map(([code, kind, failure, words, more]) => [code, { kind, failure, words, ...more }]),
);

/** Every code with a row, for the tests. */
export const listedCodes: readonly number[] = rows.map(([code]) => code);

const noPermission: Meaning = {
  kind: 'unavailable',
  failure: 'sender_rejected',
  words: 'The access token lacks a permission',
};

/** What a code means, or null if it is not known: Meta keeps adding some. */
export function meaningOf({ code, subcode }: Pick<GraphError, 'code' | 'subcode'>): Meaning | null {
  if (code === null) return null;
  if (code >= 200 && code <= 299) return noPermission;
  // Graph's own way to say that the object of the path is not there: all messages of the account get this answer.
  const isAboutPath = code === 100 && subcode === 33;
  return meanings.get(isAboutPath ? 33 : code) ?? null;
}

/** Statuses of HTTP that are about the credentials, the account or the URL, where Graph says no more. */
const unavailableStatuses: readonly number[] = [401, 402, 403, 404, 405, 407];

const unexplained: Meaning = { kind: 'deferred', failure: 'other', words: '' };
const refused: Meaning = { kind: 'rejected', failure: 'other', words: '' };
const away: Meaning = { kind: 'unavailable', failure: 'other', words: '' };
const tooMany: Meaning = { kind: 'postponed', failure: 'rate_limited', words: '', pauseMs: minuteMs };

/**
 * What a refusal means. Null: nobody can know, since neither Graph nor HTTP says that nothing was done; then the message
 * may have been sent.
 */
function meaningOfRefusal(status: number, error: GraphError, headers: GraphHeaders): Meaning | null {
  const known = meaningOf(error);
  if (known !== null) return known;
  if (status === 429) return tooMany;
  if (error.code !== null) return status >= 500 || error.isTransient ? unexplained : refused;
  if (status >= 500) return status === 503 && headers['retry-after'] !== undefined ? away : null;
  // A redirection is never followed: no other place should be shown the access token.
  return status < 400 || unavailableStatuses.includes(status) ? away : unexplained;
}

/** What an answer makes of a hand-off whose request was written. `slows` says what was too fast. */
export function outcomeOf(
  answer: Answer,
  { to, remote }: { to: string; remote: string },
): { outcome: ChatAppOutcome; slows?: 'number' | 'pair'; code: number | null } {
  if (answer.kind === 'unanswered')
    return { outcome: { kind: 'unknown', reply: ownWords(answer.detail, remote) }, code: null };
  const { status, headers } = answer;
  const { json, error, traceId } = readGraphBody(answer);
  const reply = replyOf(status, error, traceId, remote);
  const isSuccess = status >= 200 && status < 300;
  if (isSuccess) return { outcome: outcomeOfSuccess(json, reply, { to, remote, traceId }), code: null };
  const meaning = meaningOfRefusal(status, error, headers);
  if (meaning === null) return { outcome: { kind: 'unknown', reply }, code: null };
  const waitMs = waitOf(headers['retry-after']).retryAfterMs ?? regainAccessMsOf(headers) ?? meaning.pauseMs;
  return {
    outcome: { ...outcomeOfMeaning(meaning, waitMs, reply), ...findingOf(meaning, reply.diagnostic) },
    ...(meaning.slows && { slows: meaning.slows }),
    code: error.code,
  };
}

function outcomeOfMeaning(
  { kind, failure, pauseMs, attemptsMax }: Meaning,
  waitMs: number | undefined,
  reply: RemoteReply,
): ChatAppOutcome {
  const wait = waitMs === undefined ? {} : { retryAfterMs: waitMs };
  switch (kind) {
    case 'rejected':
      return { kind, reason: failure, reply };
    case 'deferred':
      return { kind, reason: failure, ...wait, ...(attemptsMax !== undefined && { attemptsMax }), reply };
    case 'unavailable':
      return { kind: 'deferred', reason: 'provider_unavailable', ...wait, reply };
    case 'postponed':
      return { kind, retryAfterMs: waitMs ?? pauseMs ?? minuteMs, reply };
  }
}

/** What a code says beyond the one message. */
export function findingOf(
  { tells, pauseMs, words: own }: Meaning,
  words: string,
): { finding?: ChatAppFinding } {
  if (tells === undefined) return {};
  switch (tells) {
    case 'stopped_marketing':
    case 'unreachable':
      return { finding: { kind: tells } };
    case 'invalid_message':
      // WhatsApp may repeat the values, which are of one person, and the finding is of the template.
      return { finding: { kind: tells, words: own } };
    case 'campaigns_held':
      return { finding: { kind: tells, words, forMs: pauseMs ?? null } };
    case 'marketing_refused':
    case 'own_fault':
      return { finding: { kind: tells, words } };
    case 'unknown_template':
      return { finding: { kind: 'template', state: null, words } };
    case 'paused':
    case 'disabled':
    case 'rejected':
      return { finding: { kind: 'template', state: tells, words } };
  }
}

/** The longest that are known have about 70 characters. */
const messageIdPattern = /^wamid\.[A-Za-z0-9+/=_-]{1,200}$/;

/** An id of a message, or null. */
export function readMessageId(value: unknown): string | null {
  const text = textOf(value);
  return text !== null && messageIdPattern.test(text) ? text : null;
}

const digitsPattern = /^\d{5,20}$/;

/** The digits of a person, or null. */
export function readWaId(value: unknown): string | null {
  const text = textOf(value)?.trim() ?? '';
  return digitsPattern.test(text) ? text : null;
}

function outcomeOfSuccess(
  json: Readonly<Record<string, unknown>>,
  reply: RemoteReply,
  { to, remote, traceId }: { to: string; remote: string; traceId: string | null },
): ChatAppOutcome {
  const message = objectOf(listOf(json.messages)[0]);
  const providerMessageId = readMessageId(message.id);
  if (providerMessageId === null)
    return { kind: 'unknown', reply: ownWords(`an answer that names no message${trace(traceId)}`, remote) };
  const waId = readWaId(objectOf(listOf(json.contacts)[0]).wa_id);
  return {
    kind: 'accepted',
    providerMessageId,
    reply: { ...reply, diagnostic: describeSuccess(textOf(message.message_status), traceId) },
    ...(waId !== null && `+${waId}` !== to && { knownAs: waId }),
  };
}

function describeSuccess(messageStatus: string | null, traceId: string | null): string {
  const isHeld = messageStatus === 'held_for_quality_assessment';
  const words = isHeld ? 'held while the template is assessed' : (messageStatus ?? 'accepted');
  return sanitiseDiagnostic(`${words.slice(0, 100)}${trace(traceId)}`);
}

/** Ours, where WhatsApp said nothing. */
export function ownWords(detail: string, remote: string | null): RemoteReply {
  return { code: null, enhancedCode: null, diagnostic: sanitiseDiagnostic(detail), remote };
}

/** The first words are for people; the trace is what Meta's support asks for, so that it is never cut off. */
function replyOf(status: number, error: GraphError, traceId: string | null, remote: string): RemoteReply {
  const said = describeError(error);
  return {
    code: error.code ?? status,
    enhancedCode: null,
    diagnostic: sanitiseDiagnostic(
      `${(said === '' ? `HTTP status ${status}` : said).slice(0, 400)}${trace(traceId)}`,
    ),
    remote,
  };
}

/** What Graph says of an error, in one line; empty if it says nothing. */
export function describeError({ code, message, details }: GraphError): string {
  const words = [message, details].filter((text) => text !== '' && text !== null);
  const known = meaningOf({ code, subcode: null })?.words ?? '';
  const text = sanitiseDiagnostic(words.join(': ')) || known;
  return text === '' || code === null || text.includes(String(code)) ? text : `${code} ${text}`;
}

function trace(traceId: string | null): string {
  return traceId === null ? '' : ` (trace ${traceId})`;
}
