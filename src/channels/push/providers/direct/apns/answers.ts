import { dateOf } from '../../../../../platform/clock.ts';
import { sanitiseDiagnostic } from '../../../../diagnostic.ts';
import type { HttpAnswer } from '../../../../http2/client.ts';
import type { RemoteReply } from '../../../../outcome.ts';
import { parseJsonObject } from '../../../../json-object.ts';
import { waitOf } from '../../../../retry-after.ts';
import type { PushFailure, PushOutcome } from '../../../provider.ts';
import { refuseToken, spread } from '../exchanges.ts';
import type { Judgement } from './connections.ts';

/**
 * What answers of APNs mean
 * (https://developer.apple.com/documentation/usernotifications/handling-notification-responses-from-apns): a status, and
 * a `reason` in JSON with every status but 200.
 */

type Answered = Extract<HttpAnswer, { kind: 'answered' }>;

export type Meaning =
  | { kind: 'accepted' }
  | { kind: 'rejected'; reason: PushFailure }
  /** The token was good until a time that the answer names. */
  | { kind: 'gone' }
  /** No token of this environment, or none at all. */
  | { kind: 'not_here' }
  /** A token of another app than the credentials: one of the two is wrong. */
  | { kind: 'foreign' }
  /** Our own token, by which the team speaks, is too old. */
  | { kind: 'stale' }
  /** The key speaks in the other environment only. */
  | { kind: 'key_not_here' }
  /** About the team or the service, and no token of a device is to blame. */
  | { kind: 'unavailable'; pauseMs?: number }
  /** Left out, the pause is as the caller makes it. */
  | { kind: 'deferred'; reason: PushFailure; pauseMs?: number }
  | { kind: 'postponed'; pauseMs: number };

type Row = {
  status: number;
  reason: string;
  meaning: Meaning;
  /** The connection is of no use for this team any more. */
  isConnectionSpent?: true;
};

const messageInvalid: Meaning = { kind: 'rejected', reason: 'invalid_message' };
const unavailable: Meaning = { kind: 'unavailable' };
const otherConnection: Meaning = { kind: 'postponed', pauseMs: 1_000 };
/** The schedule of retries begins with a minute, and is at the quarter of an hour that Apple asks for at the third. */
const unexplained: Meaning = { kind: 'deferred', reason: 'other' };
/** Apple asks for a quarter of an hour. Most outages are over much sooner, and a push is worth little then. */
const overloaded: Meaning = { kind: 'unavailable', pauseMs: 60_000 };

const rows: readonly Row[] = [
  { status: 400, reason: 'BadDeviceToken', meaning: { kind: 'not_here' } },
  { status: 400, reason: 'DeviceTokenNotForTopic', meaning: { kind: 'foreign' } },

  // What is ours to write.
  { status: 400, reason: 'BadCollapseId', meaning: messageInvalid },
  { status: 400, reason: 'BadExpirationDate', meaning: messageInvalid },
  { status: 400, reason: 'BadMessageId', meaning: messageInvalid },
  { status: 400, reason: 'BadPriority', meaning: messageInvalid },
  { status: 400, reason: 'DuplicateHeaders', meaning: messageInvalid },
  { status: 400, reason: 'InvalidPushType', meaning: messageInvalid },
  { status: 400, reason: 'MissingDeviceToken', meaning: messageInvalid },
  { status: 400, reason: 'PayloadEmpty', meaning: messageInvalid },
  { status: 404, reason: 'BadPath', meaning: messageInvalid },
  { status: 405, reason: 'MethodNotAllowed', meaning: messageInvalid },
  { status: 413, reason: 'PayloadTooLarge', meaning: { kind: 'rejected', reason: 'message_too_large' } },

  // The credentials: their topic, their key, the certificate of a service that expects one.
  { status: 400, reason: 'BadTopic', meaning: unavailable },
  { status: 400, reason: 'MissingTopic', meaning: unavailable },
  { status: 400, reason: 'TopicDisallowed', meaning: unavailable },
  { status: 403, reason: 'BadCertificate', meaning: unavailable },
  { status: 403, reason: 'BadCertificateEnvironment', meaning: unavailable },
  { status: 403, reason: 'BadEnvironmentKeyIdInToken', meaning: { kind: 'key_not_here' } },
  // So it is sent, whatever the documentation says.
  { status: 403, reason: 'BadEnvironmentKeyInToken', meaning: { kind: 'key_not_here' } },
  { status: 403, reason: 'Forbidden', meaning: unavailable },
  { status: 403, reason: 'InvalidProviderToken', meaning: unavailable },
  { status: 403, reason: 'MissingProviderToken', meaning: unavailable },

  { status: 403, reason: 'ExpiredProviderToken', meaning: { kind: 'stale' } },
  // A connection speaks for one key from the first request on.
  { status: 403, reason: 'UnrelatedKeyIdInToken', meaning: otherConnection, isConnectionSpent: true },
  // More than one new token in 20 minutes. The connection takes none for a while; the token stays as it is.
  { status: 429, reason: 'TooManyProviderTokenUpdates', meaning: unavailable, isConnectionSpent: true },
  { status: 400, reason: 'IdleTimeout', meaning: otherConnection },

  { status: 410, reason: 'Unregistered', meaning: { kind: 'gone' } },
  { status: 410, reason: 'ExpiredToken', meaning: { kind: 'gone' } },

  // Too many to one device.
  {
    status: 429,
    reason: 'TooManyRequests',
    meaning: { kind: 'deferred', reason: 'rate_limited', pauseMs: 60_000 },
  },

  { status: 500, reason: 'InternalServerError', meaning: unexplained },
  { status: 503, reason: 'ServiceUnavailable', meaning: overloaded },
  { status: 503, reason: 'Shutdown', meaning: overloaded },
];

/** What a status means without a reason that is listed. None says that a device is dead. */
const statuses: ReadonlyMap<number, Meaning> = new Map<number, Meaning>([
  [200, { kind: 'accepted' }],
  [403, unavailable],
  [413, { kind: 'rejected', reason: 'message_too_large' }],
  [429, { kind: 'deferred', reason: 'rate_limited', pauseMs: 60_000 }],
  [503, overloaded],
]);

/** An answer, read. */
export type Reading = {
  meaning: Meaning;
  /** What it says of the connection that it came on. */
  judgement: Judgement;
  /** Of a token that is gone. */
  deadSince: Date | null;
  /** The name that APNs gives the push; null where it gives none. */
  apnsId: string | null;
  retryAfter: string | undefined;
  reply: RemoteReply;
};

/** What it says is untrusted. `remote` is the host. */
export function readAnswer({ status, headers, body }: Answered, remote: string): Reading {
  const { reason, timestamp } = parseJsonObject(body);
  const row = rows.find((one) => one.status === status && one.reason === reason);
  const meaning = row?.meaning ?? statuses.get(status) ?? unexplained;
  const diagnostic = typeof reason === 'string' ? sanitiseDiagnostic(reason) : '';
  const apnsId = headers['apns-id'] ?? '';
  const isTokenTaken =
    status === 200 || (status < 500 && row !== undefined && !doubtful.includes(meaning.kind));
  return {
    meaning,
    judgement: row?.isConnectionSpent === true ? 'spent' : isTokenTaken ? 'proven' : 'untold',
    deadSince: meaning.kind === 'gone' ? dateOfTimestamp(timestamp) : null,
    apnsId: /^[0-9a-fA-F-]{36}$/.test(apnsId) ? apnsId : null,
    retryAfter: headers['retry-after'],
    reply: {
      code: status,
      enhancedCode: null,
      diagnostic: diagnostic === '' ? `HTTP status ${status}` : diagnostic,
      remote,
    },
  };
}

/** What may be said of a token that is not good. */
const doubtful: readonly Meaning['kind'][] = ['stale', 'key_not_here', 'unavailable', 'postponed'];

const adviceOnForeign =
  'No push with this key was taken lately: check that its topic is the bundle id of the app.';

/** What the outcome depends on beside the answer. */
export type AnswerContext = {
  /** Names the push where APNs does not. */
  notificationId: string;
  /** Whether APNs has lately taken a push with these credentials. */
  areCredentialsProven: boolean;
  /** From 0 to 1. */
  random: number;
};

/** What an answer makes of a hand-off that is not carried on elsewhere. */
export function outcomeOf(reading: Reading, context: AnswerContext): PushOutcome {
  const { meaning, reply, deadSince } = reading;
  const wait = waitOf(reading.retryAfter);
  const waitOr = (pauseMs: number) => ({
    retryAfterMs: wait.retryAfterMs ?? spread(pauseMs, context.random),
  });
  const pauseOf = (pauseMs?: number) => (pauseMs === undefined ? wait : waitOr(pauseMs));
  switch (meaning.kind) {
    case 'accepted':
      return { kind: 'accepted', providerMessageId: reading.apnsId ?? context.notificationId, reply };
    case 'rejected':
      return { kind: 'rejected', reason: meaning.reason, reply };
    case 'gone':
      return { kind: 'rejected', reason: 'unregistered', reply, ...(deadSince !== null && { deadSince }) };
    case 'not_here':
    case 'foreign':
      return refuseToken(reply, { ...context, advice: adviceOnForeign });
    case 'stale':
    case 'key_not_here':
      return { kind: 'deferred', reason: 'provider_unavailable', ...wait, reply };
    case 'unavailable':
      return { kind: 'deferred', reason: 'provider_unavailable', ...pauseOf(meaning.pauseMs), reply };
    case 'deferred':
      return { kind: 'deferred', reason: meaning.reason, ...pauseOf(meaning.pauseMs), reply };
    case 'postponed':
      return { kind: 'postponed', ...waitOr(meaning.pauseMs), reply };
  }
}

/** The last millisecond that a date can be of. */
const timestampMax = 8_640_000_000_000_000;

/** In milliseconds since 1970. */
function dateOfTimestamp(timestamp: unknown): Date | null {
  if (typeof timestamp !== 'number' || !(timestamp > 0 && timestamp <= timestampMax)) return null;
  return dateOf(timestamp);
}
