import type { Clock } from '../platform/clock.ts';
import type { Database } from '../platform/postgres/database.ts';
import type { PartListener } from '../platform/queue/part-listener.ts';
import * as store from './store.ts';
import { checkedPartOf } from './verification.ts';

/**
 * A check at once, for a request.
 *
 * Whoever serves requests may not write what the DNS has of a domain, or that it is verified (serving-role.ts). So the request
 * raises `checks_asked` of the domain and wakes the workers. One of them takes the domain, reads that number, looks its
 * records up, and writes the number to `checks_answered` with what it found (`checkDomain`). The request waits until its own
 * number is answered, by a notification of that transaction, and holds no connection meanwhile. So a check that was under
 * way when the request came answers it never, and one check answers all who asked before it began.
 *
 * A domain is checked by one worker at a time. If that one dies, another takes it a little later. Not promised: that a worker
 * is there at all, or has room in time. The check is made all the same once there is one.
 */
export type AskingTools = {
  database: Database;
  clock: Clock;
  /** Hears of `domain_checks`. */
  checks: PartListener;
  /** Wakes the workers. */
  onAsked: () => void;
};

/**
 * Longer than a check that was under way, and then one of its own: the look-ups of each end after ten seconds. Many clients
 * and proxies give up after thirty.
 */
export const answeredMaxMs = 25_000;

export type AskedOutcome =
  | { kind: 'checked'; domain: store.DomainRow }
  /** Another organization has verified this name, or one above or below it. */
  | { kind: 'unavailable' }
  | { kind: 'gone' }
  /** No worker has answered. */
  | { kind: 'late' };

export async function askForCheck(tools: AskingTools, key: store.DomainKey): Promise<AskedOutcome> {
  const domain = await awaitCheck(tools, key);
  if (domain === 'gone' || domain === 'late') return { kind: domain };
  if (domain.status === 'verified') return { kind: 'checked', domain };
  const related = await store.findRelatedVerified(tools.database, {
    organizationId: key.organizationId,
    name: domain.name,
  });
  return related.length > 0 ? { kind: 'unavailable' } : { kind: 'checked', domain };
}

function awaitCheck(
  { database, clock, checks, onAsked }: AskingTools,
  key: store.DomainKey,
): Promise<store.DomainRow | 'gone' | 'late'> {
  const endMs = clock.monotonicMs() + answeredMaxMs;
  const { organizationId } = key;
  return checks.whileHearing(checkedPartOf(key), async (wait) => {
    const asked = await database.asOrganizations([organizationId], (transaction) =>
      store.askForCheck(transaction, key),
    );
    if (asked === null) return 'gone';
    onAsked();
    let isOver = false;
    // Looks once more when the time is over: the listener may have been without a connection.
    while (!isOver) {
      isOver = await wait(Math.max(endMs - clock.monotonicMs(), 0));
      const domain = await database.asOrganizations([organizationId], (transaction) =>
        store.findDomain(transaction, key),
      );
      if (domain === null) return 'gone';
      if (domain.checks_answered >= asked) return domain;
    }
    return 'late';
  });
}
