import type { PublicError } from '../platform/http/errors.ts';

/** What a client is told: a code (RFC 5321 §4.2), an enhanced one (RFC 3463), and a sentence. */
export type Reply = { code: number; text: string };

/** A reply line has 512 octets (RFC 5321 §4.5.3.1.5), and clients cut what they show. */
const sentenceLengthMax = 440;

/** `enhanced` is `X.Y.Z`. The sentence is made one line of ASCII. */
export function reply(code: number, enhanced: string, sentence: string): Reply {
  const line = sentence.replace(/[^ -~]+/g, (run) => (/^\s+$/.test(run) ? ' ' : '?')).trim();
  const cut = line.length > sentenceLengthMax ? `${line.slice(0, sentenceLengthMax - 3)}...` : line;
  return { code, text: `${enhanced} ${cut}` };
}

/**
 * What the API answers, as SMTP says it: what may be taken when it is sent once more is 4xx, and what never will be is 5xx.
 */
export function replyOf(error: PublicError): Reply {
  const { statusCode, name } = error.definition;
  const [code, enhanced] = codesOf(statusCode, name);
  return reply(code, enhanced, error.message);
}

function codesOf(statusCode: number, name: string): [code: number, enhanced: string] {
  switch (statusCode) {
    case 401:
      return [535, '5.7.8'];
    case 403:
      return [550, '5.7.1'];
    case 408:
      return [451, '4.4.2'];
    case 413:
      return [552, '5.3.4'];
    case 429:
      // "Mail system full" is what a quota comes closest to; the rest is policy.
      return name === 'monthly_quota_exceeded' ? [452, '4.3.1'] : [451, '4.7.0'];
    case 500:
      return [451, '4.3.0'];
    case 503:
      return [451, '4.3.2'];
    default:
      return statusCode >= 500 ? [451, '4.3.0'] : [554, '5.6.0'];
  }
}
