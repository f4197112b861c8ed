import { LRUCache } from 'lru-cache';
import { createBatcher } from '../platform/batcher.ts';
import { type Clock, dateOf } from '../platform/clock.ts';
import { overloaded } from '../platform/http/errors.ts';
import type { FullStorage } from '../platform/http/route.ts';
import type { Log } from '../platform/log.ts';
import { createNetworkMatch, networkOf, plainAddress } from '../platform/network.ts';
import type { Database } from '../platform/postgres/database.ts';
import { partOf, wholeShare } from '../platform/process-share.ts';
import { sha256 } from '../platform/secrets.ts';
import { hasFormOfApiKey } from './api-key.ts';
import { resolveScopes, type Scope } from './schema.ts';
import * as store from './store.ts';

/** What a key opens. */
export type Grant = {
  keyId: string;
  keyName: string;
  organizationId: string;
  scopes: ReadonlySet<Scope>;
  requestsPerWindow: number;
  eventsPerWindow: number;
  fullStorage: FullStorage | null;
  /** Whether the key may be used from the address of a client; null where it may be from any. */
  isAllowedFrom: ((address: string) => boolean) | null;
};

export type KeyringOutcome = Grant | 'unauthorized' | 'too_many_wrong_keys' | ForeignAddress;

/** The key is right, and may not be used from there. */
export type ForeignAddress = { kind: 'foreign_address'; grant: Grant };

/** Tells what an API key opens, without asking the database at each request. */
export type Keyring = {
  /**
   * `address` is the client's. A network (`networkOf`) that tried many wrong keys waits longer for those that are not
   * known yet, and gets its wrong ones answered with `too_many_wrong_keys`; a right one is found all the same, since a
   * whole office may have a single address. Rejects with a PublicError (503) when more keys wait than could be looked up,
   * and with a DatabaseUnavailableError.
   */
  find: (key: string, address: string) => Promise<KeyringOutcome>;
  /** Writes down when keys were last used. */
  flush: () => Promise<void>;
};

/** A revoked key works no longer than this anywhere. Shorter asks the database more often. */
const freshForMs = 4_000;
/** After this time every node refuses a key that was revoked: with room for a slow look-up. */
export const refusedWithinMs = 5_000;
const keysMax = 10_000;
/**
 * Wrong keys of a network that are looked up one by one in a minute, by all processes of a machine; further ones wait
 * for a statement that they share. More would let one network take more of the database.
 */
const wrongKeysPerMinute = 120;
/** Of keys that share a statement: 50 of them a second at most, whatever comes, and each with so many keys. */
const sharedLookUps = { lingerMs: 20, itemsMax: 500 };
/** Beyond them 503. They are what a statement a second or two can look up, and more than the server lets in at once. */
const waitingMax = 2_000;
const networksMax = 50_000;
/** `last_used_at` is for people: a minute's precision is enough and spares a write a request. */
const touchIntervalMs = 60_000;

type Known = { grant: Grant | null; expiresAtMs: number; loadedAtMs: number; touchedAtMs: number };

/** What a network tried in the present minute. */
type Attempts = { wrongKeys: number; lookUps: number; windowStartMs: number };

export function createKeyring(
  tools: { database: Database; clock: Clock; log: Log },
  share = wholeShare,
): Keyring {
  const { database, clock, log } = tools;
  const wrongKeysMax = Math.max(1, partOf(wrongKeysPerMinute, share));
  const known = new LRUCache<string, Known>({ max: keysMax });
  const loading = new Map<string, Promise<Known | null>>();
  const attempts = new LRUCache<string, Attempts>({ max: networksMax });
  let touched: { organizationId: string; id: string; address: string | null }[] = [];

  const remember = (found: store.KeyGrant | null, cacheKey: string, loadedAtMs: number): Known | null => {
    if (found === null) {
      known.delete(cacheKey);
      return null;
    }
    const { key } = found;
    const entry = {
      grant:
        key.revokedAt === null
          ? {
              keyId: key.id,
              keyName: key.name,
              organizationId: key.organizationId,
              scopes: resolveScopes(key.scopes),
              requestsPerWindow: found.requestsPerWindow,
              eventsPerWindow: found.eventsPerWindow,
              fullStorage: found.fullStorage,
              isAllowedFrom: key.allowedNetworks && createNetworkMatch(key.allowedNetworks),
            }
          : null,
      expiresAtMs: key.expiresAt?.getTime() ?? Number.POSITIVE_INFINITY,
      loadedAtMs,
      touchedAtMs: known.get(cacheKey)?.touchedAtMs ?? Number.NEGATIVE_INFINITY,
    };
    known.set(cacheKey, entry);
    return entry;
  };

  const load = async (digest: Buffer, cacheKey: string): Promise<Known | null> => {
    // Before the question: a slow answer is as old as this.
    const loadedAtMs = clock.monotonicMs();
    const [found = null] = await store.findGrants(database, [digest]);
    return remember(found, cacheKey, loadedAtMs);
  };

  /** Of networks with many wrong keys. */
  const shared = createBatcher<{ digest: Buffer; cacheKey: string }, Known | null>({
    itemsMax: sharedLookUps.itemsMax,
    concurrency: 1,
    linger: { clock, lingerMs: sharedLookUps.lingerMs, itemsEnough: Number.POSITIVE_INFINITY },
    run: async (items) => {
      const loadedAtMs = clock.monotonicMs();
      const found = await store.findGrants(
        database,
        items.map(({ digest }) => digest),
      );
      return items.map(({ cacheKey }, index) => remember(found[index] ?? null, cacheKey, loadedAtMs));
    },
  });

  /** Requests that arrive together with the same key share one look-up. */
  const loadOnce = (digest: Buffer, cacheKey: string) => {
    let pending = loading.get(cacheKey);
    if (pending === undefined) {
      pending = load(digest, cacheKey).finally(() => loading.delete(cacheKey));
      loading.set(cacheKey, pending);
    }
    return pending;
  };

  const attemptsOf = (network: string): Attempts => {
    const nowMs = clock.monotonicMs();
    const seen = attempts.get(network);
    if (seen !== undefined && nowMs - seen.windowStartMs <= 60_000) return seen;
    const fresh = { wrongKeys: 0, lookUps: 0, windowStartMs: nowMs };
    attempts.set(network, fresh);
    return fresh;
  };

  /** Each look-up under way may turn out to be for a wrong key: many at once get no further than one by one. */
  const lookUp = async (
    digest: Buffer,
    cacheKey: string,
    from: Attempts,
  ): Promise<Known | 'unauthorized' | 'too_many_wrong_keys'> => {
    const underWay = loading.get(cacheKey);
    if (underWay !== undefined) return (await underWay) ?? 'unauthorized';
    if (from.wrongKeys + from.lookUps >= wrongKeysMax) {
      if (shared.size() >= waitingMax) throw overloaded('Too many API keys are being checked at the moment.');
      return (await shared.add({ digest, cacheKey })) ?? 'too_many_wrong_keys';
    }
    from.lookUps += 1;
    try {
      const entry = await loadOnce(digest, cacheKey);
      if (entry !== null) return entry;
      from.wrongKeys += 1;
      return 'unauthorized';
    } finally {
      from.lookUps -= 1;
    }
  };

  const flush = async () => {
    const used = touched;
    touched = [];
    if (used.length > 0) await store.touchApiKeys(database, used, dateOf(clock.nowMs()));
  };

  return {
    find: async (key, address) => {
      if (!hasFormOfApiKey(key)) return 'unauthorized';
      const digest = sha256(key);
      const cacheKey = digest.toString('base64');
      let entry: Known | null | undefined = known.get(cacheKey);
      if (entry === undefined) {
        const found = await lookUp(digest, cacheKey, attemptsOf(networkOf(address)));
        if (typeof found === 'string') return found;
        entry = found;
      } else if (clock.monotonicMs() - entry.loadedAtMs > freshForMs) {
        entry = await loadOnce(digest, cacheKey);
      }
      if (entry === null) return 'unauthorized';
      if (entry.grant === null || entry.expiresAtMs <= clock.nowMs()) return 'unauthorized';
      if (entry.grant.isAllowedFrom?.(address) === false)
        return { kind: 'foreign_address', grant: entry.grant };

      const nowMs = clock.monotonicMs();
      if (nowMs - entry.touchedAtMs > touchIntervalMs) {
        entry.touchedAtMs = nowMs;
        const { organizationId, keyId: id } = entry.grant;
        touched.push({ organizationId, id, address: plainAddress(address) });
        if (touched.length === 1) {
          clock.after(1_000, () => {
            flush().catch((cause: unknown) => {
              log.warn({ err: cause }, 'last use of keys not written');
            });
          });
        }
      }
      return entry.grant;
    },
    flush,
  };
}
