import type { RemoteReply, SendOutcome } from '../../../outcome.ts';
import { sanitiseDiagnostic } from '../../../diagnostic.ts';
import { classifyReply, enhancedCodeOf } from '../../replies.ts';
import type { ReplyPhase } from '../../replies.ts';
import type { SmtpReply } from './reply-reader.ts';

/** From the server's words to the outcome of a hand-off. */

/** The server's own words. */
export function remoteWords(reply: SmtpReply, remote: string): RemoteReply {
  const enhancedCode = enhancedCodeOf(reply.text);
  return {
    code: reply.code,
    enhancedCode,
    diagnostic: sanitiseDiagnostic(joinLines(reply.text, enhancedCode)),
    remote,
  };
}

/** Ours, where the server said nothing. */
export function ownWords(detail: string, remote: string | null): RemoteReply {
  return { code: null, enhancedCode: null, diagnostic: sanitiseDiagnostic(detail), remote };
}

/**
 * A server without SMTPUTF8 cannot be told of an address beyond ASCII. Nothing is sent in another form (RFC 6531 §3.2), and
 * the address is not to blame: by another server it may be reached. The status is that of RFC 6531 §3.5.
 */
export function refuseInternational(remote: string): Extract<SendOutcome, { kind: 'rejected' }> {
  const detail = 'the address goes beyond ASCII, and the server does not offer SMTPUTF8';
  return { kind: 'rejected', reason: 'other', reply: { ...ownWords(detail, remote), enhancedCode: '5.6.7' } };
}

/** A reply of several lines as one, without the enhanced code that most servers repeat at the start of each. */
function joinLines(text: string, enhancedCode: string | null): string {
  if (!text.includes('\n')) return text;
  const [first = '', ...others] = text.split('\n');
  const repeated = `${enhancedCode} `;
  return [
    first,
    ...others.map((line) => (line.startsWith(repeated) ? line.slice(repeated.length) : line)),
  ].join(' ');
}

/**
 * What a reply of 4xx or 5xx makes of the hand-off. A server that wants credentials before it takes any sender
 * (RFC 4954 §6) is not set up rightly: no message is to blame, so none may bounce for it.
 */
export function refusalOutcome(reply: SmtpReply, phase: ReplyPhase, remote: string): SendOutcome {
  const words = remoteWords(reply, remote);
  if (phase === 'mail' && (reply.code === 530 || reply.code === 535 || reply.code === 538)) {
    return { kind: 'deferred', reason: 'provider_unavailable', reply: words };
  }
  const reason = classifyReply(reply.code, words.enhancedCode, words.diagnostic, phase);
  return { kind: reply.code >= 500 ? 'rejected' : 'deferred', reason, reply: words };
}

/** A reply of 2xx after the dot. */
export function acceptedOutcome(reply: SmtpReply, remote: string): SendOutcome {
  const words = remoteWords(reply, remote);
  return { kind: 'accepted', providerMessageId: queueIdOf(words), reply: words };
}

/** What stands directly before the identifier: Postfix, Exim and Amazon SES write one of these. */
const queueIdMarks = ['queued as ', 'id=', 'Ok ', 'OK '];
const queueIdCharsMax = 200;
const queueIdPattern = /^<?([\w.@+=/-]{1,200})/;

/**
 * The server's name for the message, to find it again in the server's log; where its words show none, the words
 * themselves.
 */
function queueIdOf(words: RemoteReply): string {
  const text = words.diagnostic;
  for (const mark of queueIdMarks) {
    const at = text.indexOf(mark);
    if (at === -1) continue;
    const id = queueIdPattern.exec(text.slice(at + mark.length, at + mark.length + queueIdCharsMax + 1))?.[1];
    // An identifier has a digit somewhere; a word of an English sentence has none.
    if (id !== undefined && /\d/.test(id)) return id;
  }
  return text === '' ? `${words.code}` : text.slice(0, queueIdCharsMax);
}
