import { createPrivateKey, type KeyObject } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import type { Clock } from '../../../../../platform/clock.ts';
import { signJwt } from '../../../jwt.ts';
import type { PushCredentials } from '../../../provider.ts';

/**
 * The tokens by which teams speak to APNs
 * (https://developer.apple.com/documentation/usernotifications/establishing-a-token-based-connection-to-apns). Apple
 * refuses one that is older than an hour, and teams that make them more often than every 20 minutes; and two nodes that
 * sign the same claims have two tokens, since each signature of ECDSA is another. So the installation shares one with
 * all of its nodes, and what is kept here is only what it has said.
 */

export type ApnsCredentials = Extract<PushCredentials, { platform: 'ios' }>;

/**
 * Returns the token that the installation shares, made by `sign` if there was none that is good; `refused` is one that
 * APNs has just called expired. Null once the credentials were replaced.
 */
export type ShareApnsToken = (
  credentials: { organizationId: string; id: string },
  sign: (at: Date) => string,
  refused: string | null,
) => Promise<{ token: string; madeAt: Date } | null>;

export type ProviderTokens = {
  /**
   * The token of the credentials, or why there is none: no promise where it is at hand, as for all pushes but one in an
   * hour. `refused` is one that APNs has just called expired; the answer may be the same one. Rejects as
   * `shareApnsToken` does.
   */
  get: (
    organizationId: string,
    credentials: ApnsCredentials,
    refused?: string | null,
  ) => Promise<ProviderToken> | ProviderToken;
};

export type ProviderToken =
  | { kind: 'token'; token: string }
  | { kind: 'replaced' }
  /** The private key of the credentials cannot be read. */
  | { kind: 'unreadable' };

/** The installation makes a new one by then. */
const keptMs = 50 * 60_000;
/** A token of later than this was made by a clock that was wrong. */
const aheadMaxMs = 20 * 60_000;
/** One a team: some hundred bytes. With fewer, the database is asked again and again. */
const teamsMax = 10_000;

type Held = {
  shared: { token: string; madeAtMs: number } | null;
  /** The question to the installation that is under way. */
  asked: Promise<ProviderToken> | null;
};

export function createProviderTokens(clock: Clock, shareApnsToken: ShareApnsToken): ProviderTokens {
  const all = new LRUCache<string, Held>({ max: teamsMax });

  const ask = async (
    organizationId: string,
    credentials: ApnsCredentials,
    held: Held,
    refused: string | null,
  ): Promise<ProviderToken> => {
    try {
      const key = readKey(credentials);
      if (key === null) return { kind: 'unreadable' };
      const sign = (at: Date) => signProviderToken(credentials, key, at);
      const shared = await shareApnsToken({ organizationId, id: credentials.id }, sign, refused);
      if (shared === null) return { kind: 'replaced' };
      held.shared = { token: shared.token, madeAtMs: shared.madeAt.getTime() };
      return { kind: 'token', token: shared.token };
    } finally {
      held.asked = null;
    }
  };

  return {
    get: (organizationId, credentials, refused = null) => {
      const held = all.get(credentials.id) ?? { shared: null, asked: null };
      all.set(credentials.id, held);
      const { shared } = held;
      // By the wall clock, since all nodes and Apple go by it, and it may be set.
      const ageMs = clock.nowMs() - (shared?.madeAtMs ?? -Infinity);
      if (shared !== null && shared.token !== refused && ageMs > -aheadMaxMs && ageMs < keptMs)
        return { kind: 'token', token: shared.token };
      return (held.asked ??= ask(organizationId, credentials, held, refused));
    },
  };
}

function readKey({ privateKey }: ApnsCredentials): KeyObject | null {
  try {
    return createPrivateKey(privateKey);
  } catch {
    return null;
  }
}

function signProviderToken({ teamId, keyId }: ApnsCredentials, key: KeyObject, at: Date): string {
  return signJwt({ algorithm: 'ES256', key, keyId }, { iss: teamId, iat: Math.floor(at.getTime() / 1_000) });
}
