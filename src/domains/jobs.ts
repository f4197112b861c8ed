import { dateOf } from '../platform/clock.ts';
import type { Connection } from '../platform/postgres/database.ts';
import { type ChoreTools, type RunningChore, startChoreInPlaces } from '../platform/queue/chore.ts';
import * as store from './store.ts';
import { checkDomain, type CheckTools } from './verification.ts';

export type JobTools = CheckTools &
  ChoreTools & {
    /** Smaller in tests. */
    checksMax?: number;
  };

/** At once: more would only wait for the same name servers. */
const defaultChecksMax = 20;
/**
 * Of one organization at once: one whose name servers are slow leaves three quarters to others. With fewer, whoever has many
 * domains waits for longer than a request does.
 */
const checksOfOrganizationMax = 5;
/** If the process dies during a check, another one makes it after this time: all look-ups of one are over before. */
const heldMs = 15_000;

/**
 * The checks of all domains, on any number of nodes: those that are due periodically, and beside them those that were asked
 * for. Each has places, which domains of different organizations take in turns, so that whoever has slow name servers waits
 * alone. Sleeps until the next one falls due, or until a registration or a request wakes it.
 */
export function startDomainChecks(tools: JobTools): { stop: () => Promise<void> } {
  let chore: RunningChore | null = null;
  const wake = () => chore?.wake();
  const kinds = [
    createChecks(tools, { take: store.takeDueDomains, findNextAt: store.findNextCheckAt, wake }),
    createChecks(tools, { take: store.takeAskedDomains, findNextAt: store.findNextTakeoverAt, wake }),
  ];
  chore = startChoreInPlaces(tools, {
    name: 'checking domains',
    topic: 'domains',
    places: kinds.map(({ begin }) => begin),
  });
  return {
    stop: async () => {
      await chore.stop();
      await Promise.all(kinds.map(({ end }) => end()));
    },
  };
}

type Checks = {
  /** Begins as many checks as there is room for, and does not wait for them. */
  begin: () => Promise<'at once' | Date | null>;
  /** Resolves when all that were begun are over. */
  end: () => Promise<void>;
};

function createChecks(
  tools: JobTools,
  {
    take,
    findNextAt,
    wake,
  }: {
    take: (connection: Connection, wanted: store.WantedChecks) => Promise<store.DomainRow[]>;
    findNextAt: (
      connection: Connection,
      wanted: Pick<store.WantedChecks, 'at' | 'except'>,
    ) => Promise<Date | null>;
    wake: () => void;
  },
): Checks {
  const { database, clock, checksMax = defaultChecksMax } = tools;
  const underWay = new Map<Promise<void>, string>();
  /** Whether something may wait for a check that is under way, and not for a time. */
  let isHeldBack = false;

  return {
    begin: async () => {
      const except = listFull([...underWay.values()]);
      isHeldBack = except.length > 0 || underWay.size >= checksMax;
      if (underWay.size >= checksMax) return null;
      const at = dateOf(clock.nowMs());
      const until = dateOf(at.getTime() + heldMs);
      const taken = await take(database, { at, until, limit: checksMax - underWay.size, except });
      for (const domain of taken) {
        const checking = checkAndTell(tools, domain).then((isAskedAgain) => {
          underWay.delete(checking);
          if (isHeldBack || isAskedAgain) wake();
        });
        underWay.set(checking, domain.organization_id);
      }
      return taken.length > 0 ? 'at once' : findNextAt(database, { at, except });
    },
    end: async () => {
      await Promise.all(underWay.keys());
    },
  };
}

/** The organizations that have as many checks under way as one may have. */
function listFull(organizationIds: readonly string[]): string[] {
  const counts = new Map<string, number>();
  for (const id of organizationIds) counts.set(id, (counts.get(id) ?? 0) + 1);
  return [...counts].filter(([, count]) => count >= checksOfOrganizationMax).map(([id]) => id);
}

/** Never rejects: what failed is done again once nobody holds it any more. Returns whether it was asked for meanwhile. */
async function checkAndTell(tools: JobTools, domain: store.DomainRow): Promise<boolean> {
  const about = { organization_id: domain.organization_id, domain_id: domain.id };
  try {
    const checked = await checkDomain(tools, domain);
    if (checked === null) return false;
    if (checked.status !== domain.status) tools.log.info(about, 'domain verified');
    return checked.checks_asked > checked.checks_answered;
  } catch (cause) {
    tools.log.warn({ err: cause, ...about }, 'a domain was not checked');
    return false;
  }
}
