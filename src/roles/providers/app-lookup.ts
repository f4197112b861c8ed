import { LRUCache } from 'lru-cache';
import type { ProviderApp } from '../../channels/provider-callbacks.ts';
import type { Clock } from '../../platform/clock.ts';
import { createLocalRateLimiter } from '../../platform/http/local-rate-limit.ts';
import { tooOften } from '../../platform/http/page-handler.ts';
import { sha256 } from '../../platform/secrets.ts';

/**
 * The app that a token in an address names; null if it is nobody's. Rejects with 429 where the site has asked for too many
 * that were not known, and with what `find` rejects with.
 */
export type AppLookup = (token: string, site: string) => Promise<ProviderApp | null>;

/**
 * Tokens that this node has not found yet, of one site in a minute: each costs a look-up in the database. Fewer, and a node
 * that has just started refuses a provider's reports for many organizations for a while; more, and a stranger has more of the
 * database.
 */
const unknownPerMinute = 600;

const sitesMax = 50_000;

/** Of more tokens than that, those that were named longest ago are strangers again. */
const tokensMax = 50_000;

/**
 * A token that is nobody's is not looked up again for so long. A provider repeats for days what comes to an address that was
 * given up, from the site that reports for everybody. Longer, and an address that was just made would not be one yet.
 */
const missingMs = 1_000;

/**
 * `find` looks a token up in the database. A token that was found is not counted, so that strangers at the provider's own site,
 * whoever makes it report to invented addresses, take nothing from organizations that are known.
 */
export function createAppLookup(
  { clock }: { clock: Clock },
  find: (token: string) => Promise<ProviderApp | null>,
): AppLookup {
  const strangers = createLocalRateLimiter({ clock }, { limit: unknownPerMinute, subjectsMax: sitesMax });
  const found = new LRUCache<string, true>({ max: tokensMax });
  const missingUntilMs = new LRUCache<string, number>({ max: tokensMax });
  return async (token, site) => {
    // A digest: what is given for a token may have any length.
    const name = sha256(token).toString('base64');
    if ((missingUntilMs.get(name) ?? 0) > clock.monotonicMs()) return null;
    if (!found.has(name)) {
      const rate = strangers.count(site);
      if (!rate.isWithin) throw tooOften(rate);
    }
    const app = await find(token);
    if (app === null) {
      found.delete(name);
      missingUntilMs.set(name, clock.monotonicMs() + missingMs);
    } else found.set(name, true);
    return app;
  };
}
