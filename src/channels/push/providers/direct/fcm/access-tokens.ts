import { createPrivateKey, type KeyObject } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import type { Clock } from '../../../../../platform/clock.ts';
import { sanitiseDiagnostic } from '../../../../diagnostic.ts';
import type { HttpAnswer, HttpClient } from '../../../../http2/client.ts';
import type { RemoteReply } from '../../../../outcome.ts';
import { parseJsonObject } from '../../../../json-object.ts';
import { waitOf } from '../../../../retry-after.ts';
import { signJwt } from '../../../jwt.ts';
import type { PushCredentials } from '../../../provider.ts';
import { ownWords, permitFurtherRequest } from '../exchanges.ts';

/**
 * Access tokens of service accounts (RFC 7523, https://developers.google.com/identity/protocols/oauth2/service-account).
 * An account signs an assertion, and gets a token for an hour. It is renewed five minutes before its end, while pushes
 * go on under the old one; so a token endpoint that is away for some minutes is not noticed. Each node has tokens of
 * its own.
 */

export type ServiceAccount = Extract<PushCredentials, { platform: 'android' }>;

/** Where assertions are sent. What a file of a service account says of it is not believed. */
export const tokenOrigin = 'https://oauth2.googleapis.com';
const tokenPath = '/token';
const remote = new URL(tokenOrigin).host;
const scope = 'https://www.googleapis.com/auth/firebase.messaging';

export type AccessGrant =
  { kind: 'granted'; token: string } | { kind: 'refused'; retryAfterMs?: number; reply: RemoteReply };

export type AccessTokens = {
  /**
   * No promise where a token is at hand, as for nearly all pushes. `refused` is a token that FCM has refused: the answer
   * is another one. Never rejects.
   */
  get: (account: ServiceAccount, refused?: string | null) => Promise<AccessGrant> | AccessGrant;
};

/** The longest that Google grants, and what is meant where an answer says nothing of it. */
const assertedLifeMs = 3_600_000;
/** Less would leave pushes without a token whenever the endpoint is slow. */
const renewedAheadMs = 5 * 60_000;
/** After a renewal that failed. The old token is still good then. */
const renewalPauseMs = 10_000;
/** One an organization: half a kilobyte. With fewer, tokens are asked for again and again. */
const accountsMax = 10_000;

type Held = {
  granted: { token: string; renewedAtMs: number; endsAtMs: number } | null;
  /** The request under way. */
  renewal: Promise<AccessGrant> | null;
  /** No renewal begins before, as long as there is a token. */
  pausedUntilMs: number;
};

/** Times are monotonic: a clock that is set neither ends a token nor keeps it alive. */
export function createAccessTokens(clock: Clock, client: HttpClient): AccessTokens {
  const all = new LRUCache<string, Held>({ max: accountsMax });

  const ask = async (account: ServiceAccount, held: Held): Promise<AccessGrant> => {
    const askedAtMs = clock.monotonicMs();
    const { grant, lifeMs } = await requestToken(clock, client, account);
    held.renewal = null;
    if (grant.kind === 'granted') {
      const { token } = grant;
      const endsAtMs = askedAtMs + lifeMs;
      held.granted = { token, endsAtMs, renewedAtMs: endsAtMs - Math.min(renewedAheadMs, lifeMs / 2) };
    } else {
      held.pausedUntilMs = clock.monotonicMs() + renewalPauseMs;
    }
    return grant;
  };

  return {
    get: (account, refused = null) => {
      const held = all.get(account.id) ?? { granted: null, renewal: null, pausedUntilMs: 0 };
      all.set(account.id, held);
      if (held.granted?.token === refused) held.granted = null;
      const nowMs = clock.monotonicMs();
      const { granted } = held;
      if (granted === null || nowMs >= granted.endsAtMs) return (held.renewal ??= ask(account, held));
      if (nowMs >= Math.max(granted.renewedAtMs, held.pausedUntilMs)) held.renewal ??= ask(account, held);
      return { kind: 'granted', token: granted.token };
    },
  };
}

type Answer = { grant: AccessGrant; lifeMs: number };

async function requestToken(clock: Clock, client: HttpClient, account: ServiceAccount): Promise<Answer> {
  const key = readKey(account);
  if (key === null) return refuse(ownWords('The private key of the service account cannot be read.', null));
  const form = new URLSearchParams({
    grant_type: 'urn:ietf:params:oauth:grant-type:jwt-bearer',
    assertion: signAssertion(clock, account, key),
  });
  const answer = await client.exchange(
    {
      method: 'POST',
      path: tokenPath,
      headers: { 'content-type': 'application/x-www-form-urlencoded', accept: 'application/json' },
      body: Buffer.from(form.toString()),
    },
    // Several hand-offs may wait for it, and one that does not any more must not end it for the others.
    permitFurtherRequest(),
  );
  return readAnswer(answer);
}

function readKey({ privateKey }: ServiceAccount): KeyObject | null {
  try {
    return createPrivateKey(privateKey);
  } catch {
    return null;
  }
}

function signAssertion(clock: Clock, account: ServiceAccount, key: KeyObject): string {
  const iat = Math.floor(clock.nowMs() / 1_000);
  return signJwt(
    { algorithm: 'RS256', key, keyId: account.privateKeyId },
    {
      iss: account.clientEmail,
      scope,
      aud: `${tokenOrigin}${tokenPath}`,
      iat,
      exp: iat + assertedLifeMs / 1_000,
    },
  );
}

/** What the errors of the endpoint mean to an operator. Whatever it says, no push leaves without a token. */
const advice: Readonly<Record<string, string>> = {
  invalid_grant:
    'The key was deleted, its service account is disabled, or the clock of this machine is wrong by minutes.',
  invalid_client: 'Google knows no such service account.',
  unauthorized_client: 'The service account may not have tokens for Firebase Cloud Messaging.',
  access_denied: 'The service account may not have tokens for Firebase Cloud Messaging.',
};

function readAnswer(answer: HttpAnswer): Answer {
  if (answer.kind !== 'answered') return refuse(ownWords(`No access token: ${answer.detail}`, remote));
  const { status, headers, body } = answer;
  const { token, lifeMs, error, description } = readBody(body);
  if (status === 200 && token !== null) return { grant: { kind: 'granted', token }, lifeMs };
  const said = [error, description].filter((word) => word !== null).join(': ');
  const words = [
    `No access token: ${said === '' ? `HTTP status ${status}` : said}.`,
    advice[error ?? ''] ?? '',
  ];
  const diagnostic = sanitiseDiagnostic(words.join(' '));
  return refuse({ code: status, enhancedCode: null, diagnostic, remote }, waitOf(headers['retry-after']));
}

function refuse(reply: RemoteReply, wait: { retryAfterMs?: number } = {}): Answer {
  return { grant: { kind: 'refused', ...wait, reply }, lifeMs: 0 };
}

type TokenBody = { token: string | null; lifeMs: number; error: string | null; description: string | null };

function readBody(body: string | null): TokenBody {
  const {
    access_token: token,
    expires_in: seconds,
    error,
    error_description: description,
  } = parseJsonObject(body);
  return {
    // It goes into a header.
    token: typeof token === 'string' && /^[\x21-\x7e]{1,8192}$/.test(token) ? token : null,
    lifeMs:
      typeof seconds === 'number' && seconds > 0 ? Math.min(1_000 * seconds, assertedLifeMs) : assertedLifeMs,
    error: typeof error === 'string' ? error : null,
    description: typeof description === 'string' ? description : null,
  };
}
