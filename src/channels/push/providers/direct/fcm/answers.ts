import { sanitiseDiagnostic } from '../../../../diagnostic.ts';
import type { HttpAnswer } from '../../../../http2/client.ts';
import type { RemoteReply } from '../../../../outcome.ts';
import { parseJsonObject } from '../../../../json-object.ts';
import { waitOf } from '../../../../retry-after.ts';
import type { PushFailure, PushOutcome } from '../../../provider.ts';
import { ownWords, refuseToken, spread } from '../exchanges.ts';

/**
 * From the answer of FCM to the outcome of a hand-off (https://firebase.google.com/docs/reference/fcm/rest/v1/ErrorCode).
 * A refusal says three times what it is: by the code of FCM itself, in `details`; by the status of Google's APIs; and by
 * that of HTTP. The same status may come from the front of Google's network, as a page, and then says nothing of a
 * token: in 2021 some requests were answered 404 like that for hours (firebase-admin-java, issue 506).
 */

type Answered = Extract<HttpAnswer, { kind: 'answered' }>;

type Meaning =
  | { kind: 'accepted' }
  | { kind: 'rejected'; reason: PushFailure }
  /** The token is of another project than the credentials: one of the two is wrong. */
  | { kind: 'foreign' }
  /** The access token is refused. */
  | { kind: 'stale' }
  /** About the account or the service, and no token is to blame. */
  | { kind: 'unavailable'; pauseMs?: number }
  /** Left out, the pause is as the caller makes it. */
  | { kind: 'deferred'; reason: PushFailure; pauseMs?: number }
  | { kind: 'postponed'; pauseMs: number };

type Row = {
  /** The code of FCM. */
  code?: string;
  /** The status of Google's APIs (google.rpc.Code). */
  status?: string;
  http?: readonly number[];
  /** Only if the refusal says so beside that. */
  isAbout?: (said: Said) => boolean;
  meaning: Meaning;
};

const tokenInvalid: Meaning = { kind: 'rejected', reason: 'invalid_token' };
const messageInvalid: Meaning = { kind: 'rejected', reason: 'invalid_message' };
const tooLarge: Meaning = { kind: 'rejected', reason: 'message_too_large' };
const unavailable: Meaning = { kind: 'unavailable' };
/** FCM wants ten seconds at least (https://firebase.google.com/docs/cloud-messaging/scale-fcm). */
const overloaded: Meaning = { kind: 'unavailable', pauseMs: 10_000 };
const unexplained: Meaning = { kind: 'deferred', reason: 'other' };
/** 600,000 a minute of a project. Every push of the project is refused then, so that none counts as tried. */
const projectQuota: Meaning = { kind: 'postponed', pauseMs: 60_000 };
/** 240 a minute and 5,000 an hour to one device. */
const deviceQuota: Meaning = { kind: 'deferred', reason: 'rate_limited', pauseMs: 60_000 };

const isAboutToken = ({ message, fields }: Said) =>
  fields.includes('message.token') || message.includes('is not a valid FCM registration token');
/** Found in answers, and in no document. */
const isAboutSize = ({ message }: Said) => message.includes('message is too big');
const isAboutDevice = ({ message, quotas }: Said) =>
  [message, ...quotas].some((text) => /device/i.test(text));

/** The first that fits counts. */
const rows: readonly Row[] = [
  // The app was removed, the token replaced, or the device not seen for 270 days.
  { code: 'UNREGISTERED', meaning: { kind: 'rejected', reason: 'unregistered' } },
  { code: 'SENDER_ID_MISMATCH', meaning: { kind: 'foreign' } },
  { code: 'INVALID_ARGUMENT', isAbout: isAboutToken, meaning: tokenInvalid },
  { code: 'INVALID_ARGUMENT', isAbout: isAboutSize, meaning: tooLarge },
  { code: 'INVALID_ARGUMENT', meaning: messageInvalid },
  { code: 'QUOTA_EXCEEDED', isAbout: isAboutDevice, meaning: deviceQuota },
  { code: 'QUOTA_EXCEEDED', meaning: projectQuota },
  { code: 'UNAVAILABLE', meaning: overloaded },
  { code: 'INTERNAL', meaning: unexplained },
  // The project lacks what Apple or a browser asks for. Tokens of Android have no third party.
  { code: 'THIRD_PARTY_AUTH_ERROR', meaning: { kind: 'rejected', reason: 'credentials' } },

  { status: 'INVALID_ARGUMENT', isAbout: isAboutToken, meaning: tokenInvalid },
  { status: 'INVALID_ARGUMENT', isAbout: isAboutSize, meaning: tooLarge },
  { status: 'INVALID_ARGUMENT', meaning: messageInvalid },
  { status: 'UNAUTHENTICATED', meaning: { kind: 'stale' } },
  // The API is not enabled, the account lacks the role, or the project is suspended.
  { status: 'PERMISSION_DENIED', meaning: unavailable },
  // No such project. Without a code of FCM it says nothing of the token.
  { status: 'NOT_FOUND', meaning: unavailable },
  { status: 'RESOURCE_EXHAUSTED', isAbout: isAboutDevice, meaning: deviceQuota },
  { status: 'RESOURCE_EXHAUSTED', meaning: projectQuota },
  { status: 'INTERNAL', meaning: unexplained },
  { status: 'UNAVAILABLE', meaning: overloaded },

  { http: [401], meaning: { kind: 'stale' } },
  { http: [403, 404], meaning: unavailable },
  { http: [413], meaning: tooLarge },
  { http: [429], meaning: projectQuota },
  { http: [503], meaning: overloaded },
  // Never followed: no other place should be shown the access token.
  { http: [301, 302, 303, 307, 308], meaning: unavailable },
];

const adviceOnForeign =
  'No push with this service account was taken lately: check that it is of the Firebase project of the app.';

/** What the outcome depends on beside the answer. */
export type AnswerContext = {
  /** Whether FCM has lately taken a push with these credentials. */
  areCredentialsProven: boolean;
  /** The host. */
  remote: string;
  /** From 0 to 1. */
  random: number;
};

/** Whether another access token may help. Nothing was sent. */
export function isTokenRefused(answer: HttpAnswer): boolean {
  if (answer.kind !== 'answered' || isTaken(answer)) return false;
  return meaningOf(answer, readBody(answer.body)).kind === 'stale';
}

/** What an answer makes of a hand-off. What is not listed is tried again, within the limit of attempts. */
export function outcomeOf(
  answer: Answered,
  { areCredentialsProven, remote, random }: AnswerContext,
): PushOutcome {
  const said = readBody(answer.body);
  const meaning = meaningOf(answer, said);
  const reply = replyOf(answer, said, remote);
  const wait = waitOf(answer.headers['retry-after']);
  const waitOr = (pauseMs: number) => ({ retryAfterMs: wait.retryAfterMs ?? spread(pauseMs, random) });
  const pauseOf = (pauseMs?: number) => (pauseMs === undefined ? wait : waitOr(pauseMs));
  switch (meaning.kind) {
    case 'accepted':
      return said.name === null
        ? { kind: 'unknown', reply: ownWords('an answer that names no message', remote) }
        : { kind: 'accepted', providerMessageId: said.name, reply };
    case 'rejected':
      return { kind: 'rejected', reason: meaning.reason, reply };
    case 'foreign':
      return refuseToken(reply, { areCredentialsProven, advice: adviceOnForeign, random });
    case 'stale':
      return { kind: 'deferred', reason: 'provider_unavailable', ...wait, reply };
    case 'unavailable':
      return { kind: 'deferred', reason: 'provider_unavailable', ...pauseOf(meaning.pauseMs), reply };
    case 'deferred':
      return { kind: 'deferred', reason: meaning.reason, ...pauseOf(meaning.pauseMs), reply };
    case 'postponed':
      return { kind: 'postponed', ...waitOr(meaning.pauseMs), reply };
  }
}

function isTaken({ status }: Answered): boolean {
  return status >= 200 && status < 300;
}

function meaningOf(answer: Answered, said: Said): Meaning {
  if (isTaken(answer)) return { kind: 'accepted' };
  return rows.find((row) => isFitting(row, answer.status, said))?.meaning ?? unexplained;
}

function isFitting({ code, status, http, isAbout }: Row, httpStatus: number, said: Said): boolean {
  return (
    (code === undefined || code === said.code) &&
    (status === undefined || status === said.status) &&
    (http?.includes(httpStatus) ?? true) &&
    (isAbout?.(said) ?? true)
  );
}

/** What we read of a body. It is empty of all where the body is no JSON object, as with a page. */
type Said = {
  /** Of the message that was taken. */
  name: string | null;
  /** FCM's own. */
  code: string | null;
  status: string | null;
  message: string;
  /** Those that `google.rpc.BadRequest` calls wrong. */
  fields: readonly string[];
  /** What `google.rpc.QuotaFailure` says of each quota. */
  quotas: readonly string[];
};

/** Longer ones would fill our tables; those of today have about 60 characters. */
const namePattern = /^projects\/[\x21-\x7e]{1,500}$/;

function readBody(body: string | null): Said {
  const parsed = parseJsonObject(body);
  const error = objectOf(parsed.error);
  const details = listOf(error.details).map(objectOf);
  const ofType = (type: string) => details.filter((detail) => textOf(detail['@type'])?.endsWith(type));
  const name = textOf(parsed.name);
  return {
    name: name !== null && namePattern.test(name) ? name : null,
    code: textOf(ofType('.FcmError')[0]?.errorCode),
    status: textOf(error.status),
    message: textOf(error.message) ?? '',
    fields: ofType('.BadRequest')
      .flatMap((detail) => listOf(detail.fieldViolations))
      .flatMap((violation) => textOf(objectOf(violation).field) ?? []),
    quotas: ofType('.QuotaFailure')
      .flatMap((detail) => listOf(detail.violations))
      .map(objectOf)
      .map(({ subject, description }) => `${textOf(subject) ?? ''} ${textOf(description) ?? ''}`),
  };
}

function objectOf(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? { ...value } : {};
}

function listOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

function textOf(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

function replyOf({ status }: Answered, said: Said, remote: string): RemoteReply {
  const words = [said.code ?? said.status, said.message].filter((word) => word !== null && word !== '');
  const diagnostic = sanitiseDiagnostic(words.join(': '));
  return {
    code: status,
    enhancedCode: null,
    diagnostic: diagnostic === '' ? `HTTP status ${status}` : diagnostic,
    remote,
  };
}
