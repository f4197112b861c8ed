import { sanitiseDiagnostic } from '../../../../diagnostic.ts';
import type { HttpAnswer } from '../../../../http2/client.ts';
import type { RemoteReply } from '../../../../outcome.ts';
import { waitOf } from '../../../../retry-after.ts';
import type { PushFailure, PushOutcome } from '../../../provider.ts';
import { refuseToken } from '../exchanges.ts';

/**
 * From the answer of a browser's push service to the outcome of a hand-off. RFC 8030 says what the statuses mean, and
 * every service has habits of its own:
 *
 * - Mozilla: JSON with an `errno` and a `message` (autopush, docs/src/errors.md).
 * - Google: a line of text. The statuses 400, 401 and 403 are told apart by their words only.
 * - Apple: JSON with a `reason` (developer.apple.com, "Sending web push notifications").
 * - Microsoft: nothing in the body; 406 says that the sender is throttled.
 */

type Answered = Extract<HttpAnswer, { kind: 'answered' }>;

/** `mismatch`: the subscription is bound to another VAPID key than the one that signed (RFC 8292 §4.2). */
type Meaning =
  | { kind: 'accepted' | 'mismatch' }
  | { kind: 'rejected'; reason: PushFailure }
  /** `pauseMs` where the service does not say for how long. Left out: as the caller does it. */
  | { kind: 'deferred'; reason: PushFailure | 'provider_unavailable'; pauseMs?: number };

type Row = {
  statuses: readonly number[];
  /** Only if the body says so. Left out: whatever it says. */
  says?: RegExp;
  meaning: Meaning;
};

const accepted: Meaning = { kind: 'accepted' };
const mismatch: Meaning = { kind: 'mismatch' };
const gone: Meaning = { kind: 'rejected', reason: 'unregistered' };
const ourFault: Meaning = { kind: 'rejected', reason: 'invalid_message' };
/** Of the organization at this service: the account is left alone for a while, and no device is to blame. */
const unavailable: Meaning = { kind: 'deferred', reason: 'provider_unavailable' };
const throttled: Meaning = { kind: 'deferred', reason: 'rate_limited', pauseMs: 60_000 };
const unexplained: Meaning = { kind: 'deferred', reason: 'other' };

/** A page, as from a proxy or from the front of a large service: it was written without looking at the subscription. */
const page = /^\s*<(?:!doctype|html)/i;
/** Of an answer that did not arrive whole, or is longer than what services say by far. */
const unreadPage = '<html>';

/** The first that fits counts. */
const rows: readonly Row[] = [
  { statuses: [200, 201, 202], meaning: accepted },

  { statuses: [400], says: /UnauthorizedRegistration/, meaning: mismatch }, // Google
  { statuses: [400, 403], says: /VapidPkHashMismatch/, meaning: mismatch }, // Apple
  { statuses: [401, 403], says: /do not correspond to the credentials used to create/, meaning: mismatch }, // Google
  { statuses: [401], says: /VAPID public key mismatch/, meaning: mismatch }, // Mozilla, among others of errno 109
  // Google says it of single subscriptions, for about a day, and then takes their pushes again.
  { statuses: [401], says: /invalid push subscription endpoint/, meaning: unexplained },
  // The token: a clock that is wrong, a `sub` that Apple does not take.
  { statuses: [401, 403], meaning: unavailable },
  // Mozilla's errno 110 to 113, Apple's BadTtl, BadUrgency and BadWebPushTopic: a header or the encryption.
  { statuses: [400], meaning: ourFault },

  { statuses: [404], says: page, meaning: unexplained },
  { statuses: [404, 410], meaning: gone }, // RFC 8030 §7.3; most services say 410
  // Every service must take the 4,096 octets that a body has at most (RFC 8030 §7.2). Mozilla's bridge to Android does
  // not: errno 104 from about 2,744 on.
  { statuses: [413], meaning: { kind: 'rejected', reason: 'message_too_large' } },
  { statuses: [406, 429], meaning: throttled },

  // Mozilla says 502 if the bridge to Android fails. A repetition replaces what was taken all the same (`Topic`).
  { statuses: [500, 502, 504], meaning: unexplained },
  { statuses: [503], meaning: unavailable },

  // Never followed: the endpoint was checked against the services that are allowed, and no other place was.
  { statuses: [301, 302, 303, 307, 308], meaning: { kind: 'rejected', reason: 'other' } },
];

/** What the outcome depends on beside the answer. */
export type AnswerContext = {
  /** Names the push where the service gives it no name. */
  notificationId: string;
  /** Whether a service has lately taken a push with this VAPID key. */
  areCredentialsProven: boolean;
  /** The host. */
  remote: string;
  /** From 0 to 1. */
  random: number;
};

/** What an answer makes of a hand-off. Statuses that are not listed are tried again, within the limit of attempts. */
export function outcomeOf(answer: Answered, context: AnswerContext): PushOutcome {
  const { meaning } = rows.find((row) => isFitting(row, answer)) ?? { meaning: unexplained };
  const reply = replyOf(answer, context.remote);
  switch (meaning.kind) {
    case 'accepted':
      return { kind: 'accepted', providerMessageId: nameOf(answer, context), reply };
    case 'mismatch':
      return refuseToken(reply, { ...context, advice: adviceOnMismatch });
    case 'rejected':
      return { kind: 'rejected', reason: meaning.reason, reply };
    case 'deferred': {
      const { reason, pauseMs } = meaning;
      const pause = pauseMs === undefined ? {} : { retryAfterMs: pauseMs };
      return { kind: 'deferred', reason, ...pause, ...waitOf(answer.headers['retry-after']), reply };
    }
  }
}

function isFitting({ statuses, says }: Row, { status, body }: Answered): boolean {
  return statuses.includes(status) && (says?.test(body ?? unreadPage) ?? true);
}

const adviceOnMismatch =
  'No push with this VAPID key was taken lately: check that it is the one of the subscriptions.';

/** Longer ones would fill our tables: RFC 8030 sets no limit, and those of today have less than 300 characters. */
const nameCharsMax = 1_000;

function nameOf({ headers }: Answered, { notificationId }: AnswerContext): string {
  const { location = '' } = headers;
  return /^[\x21-\x7e]+$/.test(location) && location.length <= nameCharsMax ? location : notificationId;
}

function replyOf({ status, body }: Answered, remote: string): RemoteReply {
  const said = body === null || body === '' || page.test(body) ? '' : sanitiseDiagnostic(wordsOf(body));
  return {
    code: status,
    enhancedCode: null,
    diagnostic: said === '' ? `HTTP status ${status}` : said,
    remote,
  };
}

/** Apple's `reason`, Mozilla's `message`, or the line as it is. */
function wordsOf(body: string): string {
  try {
    const parsed: unknown = JSON.parse(body);
    const { reason, message } = parsed as { reason?: unknown; message?: unknown }; // Throws for null, as below.
    const words = [reason, message].filter((each) => typeof each === 'string');
    return words.length > 0 ? words.join(': ') : body;
  } catch {
    return body;
  }
}
