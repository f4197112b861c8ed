import { sanitiseDiagnostic } from '../../../diagnostic.ts';
import type { RemoteReply } from '../../../outcome.ts';
import type { SmsOutcome } from '../../provider.ts';
import type { Answer } from '../../../http1/exchange.ts';
import { parseJsonObject } from '../../../json-object.ts';
import { waitOf } from '../../../retry-after.ts';
import { failureOf } from './failures.ts';

/** From Twilio's answer to the outcome of a hand-off. */

/** Twilio names every message by two letters and 32 hexadecimal digits: `SM…`, and `MM…` with media. */
export const messageSidPattern = /^[SM]M[0-9a-fA-F]{32}$/;

/** Statuses that are about the credentials, the account or the URL. No text is to blame, so none may fail for it. */
const unavailableStatuses: readonly number[] = [401, 402, 403, 404, 405, 407];

/**
 * What an answer makes of a hand-off whose request was written. Only a whole answer that names the message says that
 * Twilio has it; only a refusal that Twilio worded itself, or that HTTP defines as one (4xx, 503 with Retry-After),
 * says that it has not. Everything in between is `unknown`.
 */
export function outcomeOf(answer: Answer, remote: string): SmsOutcome {
  if (answer.kind === 'unanswered') return { kind: 'unknown', reply: ownWords(answer.detail, remote) };
  const { status, headers } = answer;
  const retryAfter = headers['retry-after'];
  const said = parseBody(answer.body);
  const reply = replyOf(status, said, remote);
  if (status >= 200 && status < 300) return outcomeOfSuccess(said, reply, remote);
  if (status === 429) {
    return { kind: 'deferred', reason: 'rate_limited', ...waitOf(retryAfter), reply };
  }
  if (status >= 500) {
    if (status !== 503 || retryAfter === undefined) return { kind: 'unknown', reply };
    return { kind: 'deferred', reason: 'provider_unavailable', ...waitOf(retryAfter), reply };
  }
  return outcomeOfRefusal(status, said, reply);
}

/** Ours, where Twilio said nothing. */
export function ownWords(detail: string, remote: string): RemoteReply {
  return { code: null, enhancedCode: null, diagnostic: sanitiseDiagnostic(detail), remote };
}

/** What an answer says, in one line. */
export function describeAnswer(answer: Answer): string {
  if (answer.kind === 'unanswered') return sanitiseDiagnostic(answer.detail);
  return replyOf(answer.status, parseBody(answer.body), '').diagnostic;
}

function outcomeOfSuccess(said: TwilioBody, reply: RemoteReply, remote: string): SmsOutcome {
  if (said.sid !== null) return { kind: 'accepted', providerMessageId: said.sid, reply };
  return { kind: 'unknown', reply: ownWords('an answer that names no message', remote) };
}

function outcomeOfRefusal(status: number, said: TwilioBody, reply: RemoteReply): SmsOutcome {
  const known = status === 401 || said.code === null ? null : failureOf(said.code);
  if (known?.kind === 'rejected') {
    const { failure: reason, finding } = known;
    return { kind: 'rejected', reason, reply, ...(finding !== undefined && { finding }) };
  }
  if (known?.kind === 'deferred') return { kind: 'deferred', reason: known.failure, reply };
  const isUnavailable = known !== null || status < 400 || unavailableStatuses.includes(status);
  // A code that is not listed is tried again, within the limit of attempts.
  return { kind: 'deferred', reason: isUnavailable ? 'provider_unavailable' : 'other', reply };
}

/** What we read of a body. Everything is null where the body is no JSON object, as with the pages of a proxy. */
type TwilioBody = { sid: string | null; code: number | null; message: string | null };

function parseBody(body: string | null): TwilioBody {
  const { sid, code, message } = parseJsonObject(body);
  return {
    sid: typeof sid === 'string' && messageSidPattern.test(sid) ? sid : null,
    code: typeof code === 'number' && Number.isSafeInteger(code) ? code : null,
    message: typeof message === 'string' ? message : null,
  };
}

function replyOf(status: number, { code, message }: TwilioBody, remote: string): RemoteReply {
  const diagnostic = sanitiseDiagnostic(message ?? '');
  return {
    code: code ?? status,
    enhancedCode: null,
    diagnostic: diagnostic === '' ? `HTTP status ${status}` : diagnostic,
    remote,
  };
}
