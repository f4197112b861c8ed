import type { Resolver } from '../platform/dns/dns.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import type { Database } from '../platform/postgres/database.ts';
import { wakeOnce } from '../platform/queue/wake.ts';
import { isComplete, listIssues, nextCheckAtMs, updateFindings } from './findings.ts';
import {
  type DomainSettings,
  type ExpectedRecord,
  type InstanceHosts,
  listExpectedRecords,
  observeAlias,
  observeExchanges,
  observeTexts,
  type Observation,
  type RecordKind,
} from './records.ts';
import type { DomainTools } from './registration.ts';
import { logDomain } from './told-events.ts';
import * as store from './store.ts';

/** What looking a domain up in the DNS needs besides. */
export type CheckTools = DomainTools & { resolver: Resolver; hosts: InstanceHosts };

/** How a notification of `domain_checks` names a domain of which a check was asked for, and is answered. */
export function checkedPartOf({ organizationId, id }: store.DomainKey): string {
  return `${organizationId} ${id}`;
}

/**
 * Looks a domain up in the DNS, stores the result, and tells those who have asked for it until the domain was read. A pending
 * domain with all of its records becomes verified, unless another organization has it, its parent or a subdomain by then; a
 * verified one that lacks records is degraded. Returns null if it was deleted meanwhile.
 */
export async function checkDomain(
  tools: CheckTools,
  domain: store.DomainRow,
): Promise<store.DomainRow | null> {
  const settings = store.settingsOf(domain);
  // Without keys it is verified by the operator's word, and there is nothing to look for.
  const expected = settings === null ? [] : listExpectedRecords(settings, tools.hosts);
  const observations =
    settings === null ? new Map<RecordKind, Observation>() : await observeRecords(tools, settings, expected);
  const at = now(tools.clock);
  const key = { organizationId: domain.organization_id, id: domain.id };

  return tools.database.transaction(async (transaction) => {
    if (domain.checks_asked > domain.checks_answered)
      await wakeOnce(transaction, 'domain_checks', checkedPartOf(key));
    await store.lockVerification(transaction);
    const asOwner = <Result>(work: () => Promise<Result>) =>
      transaction.asOrganizations([key.organizationId], work);
    const current = await asOwner(() => store.findDomain(transaction, key));
    if (current === null) return null;
    const findings = updateFindings(current.findings, observations, at);
    const isVerified = current.status === 'verified';
    const isDegraded = isVerified && listIssues(expected, findings).length > 0;
    const saved = await asOwner(() =>
      store.saveCheck(transaction, {
        ...key,
        findings,
        checkedAt: at,
        nextCheckAt: dateOf(nextCheckAtMs(current.created_at.getTime(), at.getTime())),
        degradedSince: isDegraded ? (current.degraded_since ?? at) : null,
        answers: domain.checks_asked,
      }),
    );
    const wasDegraded = current.degraded_since !== null;
    if (isDegraded !== wasDegraded)
      await asOwner(() =>
        logDomain(transaction, key, isDegraded ? 'domain.degraded' : 'domain.recovered', at),
      );
    if (isVerified || settings === null) return saved;

    const related = await store.findRelatedVerified(transaction, {
      organizationId: key.organizationId,
      name: current.name,
    });
    if (related.length > 0) return saved;
    if (!isComplete(expected, findings)) return saved;
    return asOwner(async () => {
      if (await store.markVerified(transaction, key, at))
        await logDomain(transaction, key, 'domain.verified', at);
      return store.findDomain(transaction, key);
    });
  });
}

/** What the newest verified domains lack in the DNS at this moment, whatever the last check said. Writes nothing. */
export async function examineVerifiedDomains(
  tools: { database: Database; resolver: Resolver; hosts: InstanceHosts; clock: Clock },
  limit: number,
): Promise<{ name: string; issues: string[]; isAnswered: boolean }[]> {
  const domains = await store.listNewestVerified(tools.database, limit);
  return Promise.all(
    domains.map(async (domain) => {
      const settings = store.settingsOf(domain);
      if (settings === null) {
        return { name: domain.name, issues: ['It has no DKIM key: verify it again.'], isAnswered: true };
      }
      const expected = listExpectedRecords(settings, tools.hosts);
      const observations = await observeRecords(tools, settings, expected);
      return {
        name: domain.name,
        issues: listIssues(expected, updateFindings({}, observations, now(tools.clock))),
        isAnswered: [...observations.values()].every(({ kind }) => kind === 'seen'),
      };
    }),
  );
}

/** All at once, and asked anew: a user who has just published a record wants to see it. */
async function observeRecords(
  { resolver, hosts }: Pick<CheckTools, 'resolver' | 'hosts'>,
  settings: DomainSettings,
  expected: readonly ExpectedRecord[],
): Promise<Map<RecordKind, Observation>> {
  const observe = async (record: ExpectedRecord): Promise<Observation> => {
    const options = { isFresh: true, isUnshared: true };
    switch (record.type) {
      case 'TXT':
        return observeTexts(record, await resolver.txt(record.name, options), settings, hosts);
      case 'MX':
        return observeExchanges(record, await resolver.mx(record.name, options));
      case 'CNAME':
        return observeAlias(record, await resolver.cname(record.name, options));
    }
  };
  return new Map(
    await Promise.all(expected.map(async (record) => [record.kind, await observe(record)] as const)),
  );
}
