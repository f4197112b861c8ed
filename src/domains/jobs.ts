import { dateOf, now } from '../platform/clock.ts';
import { type ChoreTools, startChore } from '../platform/queue/chore.ts';
import * as store from './store.ts';
import { checkDomain, type CheckTools } from './verification.ts';

export type JobTools = CheckTools &
  ChoreTools & {
    /** Smaller in tests. */
    checksMax?: number;
  };

/** More at once would only wait for the same name servers. */
const defaultChecksMax = 20;
/** If the process dies during a check, the check is made again after this time. */
const retryMs = 60_000;

/**
 * The periodic check of all domains, on any number of nodes: each due domain is taken by one of them. Sleeps until
 * the next one falls due, or until a registration wakes it.
 */
export function startDomainChecks(tools: JobTools): { stop: () => Promise<void> } {
  return startChore(tools, {
    name: 'checking domains',
    topic: 'domains',
    work: async () => {
      if (await checkDueDomains(tools)) return 'at once';
      return store.findNextCheckAt(tools.database);
    },
  });
}

/** Returns whether there may be more that is due. */
async function checkDueDomains(tools: JobTools): Promise<boolean> {
  const { checksMax = defaultChecksMax } = tools;
  const due = await store.takeDueDomains(tools.database, {
    at: now(tools.clock),
    retryAt: dateOf(tools.clock.nowMs() + retryMs),
    limit: checksMax,
  });
  const checks = await Promise.allSettled(
    due.map(async (domain) => {
      const outcome = await checkDomain(tools, domain);
      if (outcome.kind === 'checked' && outcome.domain.status !== domain.status) {
        tools.log.info({ organization_id: domain.organization_id, domain_id: domain.id }, 'domain verified');
      }
    }),
  );
  for (const check of checks) if (check.status === 'rejected') throw check.reason;
  return due.length > 0;
}
