import type { Database } from '../platform/postgres/database.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Secrets } from '../platform/secrets.ts';
import { loadLimits } from '../accounts/accounts.ts';
import { nextCheckAtMs } from './findings.ts';
import { createSealedKeyPair } from './key-pair.ts';
import { defaultReturnPathSubdomain, type DomainBody, parseSendingDomain } from './schema.ts';
import * as store from './store.ts';

/** What registering and verifying need. */
export type DomainTools = { database: Database; clock: Clock; newId: NewId; secrets: Secrets };

export type RegistrationOutcome =
  | { kind: 'registered'; domain: store.DomainRow }
  /** Another organization has verified this name, or one above or below it. */
  | { kind: 'unavailable' }
  | { kind: 'limit_reached' }
  | { kind: 'busy' };

/**
 * Registers a domain for an organization, or returns it as it is if the organization holds it already. One at a
 * time: a second registration of the same organization is turned away while the first is under way.
 */
export async function registerDomain(
  tools: DomainTools,
  organizationId: string,
  body: DomainBody,
): Promise<RegistrationOutcome> {
  const name = parseSendingDomain(body.name);
  if (name === null) throw new Error('the schema lets no such name through');
  const returnPathSubdomain = body.return_path_subdomain ?? defaultReturnPathSubdomain;
  const trackingSubdomain = body.tracking_subdomain ?? null;
  return tools.database.transaction(async (transaction): Promise<RegistrationOutcome> => {
    if (!(await store.tryLockRegistration(transaction, organizationId))) return { kind: 'busy' };
    const asOwner = <Result>(work: () => Promise<Result>) =>
      transaction.asOrganizations([organizationId], work);
    const held = await asOwner(() => store.findDomainByName(transaction, { organizationId, name }));
    if (held !== null) return { kind: 'registered', domain: held };
    const related = await store.findRelatedVerified(transaction, { organizationId, name });
    if (related.length > 0) return { kind: 'unavailable' };
    const isLimitReached = await asOwner(async () => {
      const { domains: limit } = await loadLimits(transaction, organizationId);
      return limit !== null && (await store.holdsDomains(transaction, organizationId, limit));
    });
    if (isLimitReached) return { kind: 'limit_reached' };
    // A tenth of a second of arithmetic in the thread pool, within the transaction because its lock is what makes
    // others wait their turn, and only where a domain is really made.
    const dkim = await createSealedKeyPair(tools);
    const at = now(tools.clock);
    const domain = await asOwner(() =>
      store.insertDomain(transaction, {
        organizationId,
        id: tools.newId(),
        name,
        returnPathSubdomain,
        trackingSubdomain,
        openTracking: body.open_tracking ?? false,
        clickTracking: body.click_tracking ?? false,
        dkim,
        nextCheckAt: dateOf(nextCheckAtMs(at.getTime(), at.getTime())),
        createdAt: at,
      }),
    );
    return { kind: 'registered', domain };
  });
}
