import { createBell } from '../platform/bell.ts';
import { dateOf, now } from '../platform/clock.ts';
import type { Log } from '../platform/log.ts';
import { listenForWakes } from '../platform/queue/wake.ts';
import * as store from './store.ts';
import { checkDomain, type CheckTools } from './verification.ts';

/** The channel on which a registration wakes whoever checks. */
export const domainChannel = 'postillion_domains';

export type JobTools = CheckTools & { log: Log };

/** More at once would only wait for the same name servers. */
const checksMax = 20;
/** Should whoever checks die over it: the check is made again after so long. */
const retryMs = 60_000;
/** Should a notification be lost. */
const idleMs = 60_000;
const pauseAfterFailureMs = 5_000;

/**
 * The periodic check of all domains, on any number of nodes: each due domain is taken by one of them. Sleeps until
 * the next one falls due, or until a registration wakes it.
 */
export function startDomainChecks(tools: JobTools): { stop: () => Promise<void> } {
  const stopping = new AbortController();
  const bell = createBell(tools.clock);
  const listening = listenForWakes(tools, domainChannel, stopping.signal, bell.ring);
  const working = (async () => {
    while (!stopping.signal.aborted) {
      let pauseMs = pauseAfterFailureMs;
      try {
        if (await checkDueDomains(tools)) continue;
        const nextAt = await store.findNextCheckAt(tools.database);
        pauseMs = nextAt === null ? idleMs : nextAt.getTime() - tools.clock.nowMs();
      } catch (cause) {
        tools.log.warn({ err: cause }, 'checking domains was interrupted');
      }
      await bell.wait(Math.min(Math.max(pauseMs, 0) + 1, idleMs));
    }
  })();
  return {
    stop: async () => {
      stopping.abort(new Error('the checks of domains are stopping'));
      bell.ring();
      await Promise.all([listening, working]);
    },
  };
}

/** Returns whether there may be more that is due. */
async function checkDueDomains(tools: JobTools): Promise<boolean> {
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
  return due.length === checksMax;
}
