import { dateOf, now } from '../platform/clock.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import type { ChoreTools } from '../platform/queue/chore.ts';
import { createPauses, pauseAfterFailureMs } from '../platform/queue/pauses.ts';
import { startTurns } from '../platform/queue/turns.ts';
import * as properties from './property-store.ts';
import { findOrganizationsOfDeletedSets, removeMembersOfDeleted, takeDeletedSet } from './set-store.ts';

/**
 * Rows in one transaction. With fewer, more commits are needed; with more, locks are held longer than a request should
 * wait.
 */
const defaultMembersMax = 5_000;
const defaultContactsMax = 5_000;
/** Transactions that began to write values before the deletion have ended by then. */
const writersDoneMs = 60_000;
/** How many organizations are looked for at once. */
const organizationsMax = 100;

export type ClearingTools = ChoreTools & {
  /** Smaller in tests. */
  membersMax?: number;
  contactsMax?: number;
};

/**
 * Removes what is left of deleted lists, tags, segments and properties, a bounded piece of each organization at a time. If
 * that fails for one of them, only that one is postponed, so that it does not block others.
 */
export function startClearing(tools: ClearingTools): { stop: () => Promise<void> } {
  const { database, clock, membersMax = defaultMembersMax, contactsMax = defaultContactsMax } = tools;
  /** What was deleted by then is written by nobody any more. */
  const writtenBefore = (at: Date) => dateOf(at.getTime() - writersDoneMs);
  const clearSets = createClearer(tools, {
    what: 'set',
    take: takeDeletedSet,
    clear: (transaction, set) => removeMembersOfDeleted(transaction, set, membersMax),
  });
  const clearValues = createClearer(tools, {
    what: 'property',
    take: (transaction, wanted) =>
      properties.takeDeletedProperty(transaction, { ...wanted, deletedBefore: writtenBefore(now(clock)) }),
    clear: async (transaction, property) => {
      const until = await properties.forgetValues(transaction, property, contactsMax);
      await properties.markForgotten(transaction, property, until, now(clock));
    },
  });
  return startTurns(tools, {
    name: 'clearing up after deletions',
    topic: 'clearing',
    slicesMs: [null],
    organizationsMax,
    find: async (after, limit) => {
      const at = now(clock);
      const found = await Promise.all([
        findOrganizationsOfDeletedSets(database, { at, after, limit }),
        properties.findOrganizationsOfDeletedProperties(database, { at: writtenBefore(at), after, limit }),
      ]);
      return [...new Set(found.flat())].sort().slice(0, limit);
    },
    work: async (organizationId) => {
      const hadMembers = await clearSets(organizationId);
      const hadValues = await clearValues(organizationId);
      // Postponed ones are tried when the chore wakes by itself.
      return hadMembers || hadValues ? 'more' : null;
    },
    findNextAt: async (after) => {
      const deletedAt = await properties.findNextDeletedAt(database, writtenBefore(after));
      return deletedAt && dateOf(deletedAt.getTime() + writersDoneMs);
    },
  });
}

type Deleted = { organizationId: string; id: string; deletedAt: Date };

type Clearing<Item extends Deleted> = {
  /** Its name in the log. */
  what: string;
  /** The next one of the organization that is none of these. */
  take: (
    transaction: Transaction,
    wanted: { organizationId: string; exceptIds: readonly string[] },
  ) => Promise<Item | null>;
  /** Does a bounded piece of what is to be done about it. */
  clear: (transaction: Transaction, item: Item) => Promise<void>;
};

/** Each process has its own list of postponed ones, so a new process tries everything once. */
function createClearer<Item extends Deleted>(
  { database, clock, log }: ClearingTools,
  { what, take, clear }: Clearing<Item>,
): (organizationId: string) => Promise<boolean> {
  const pauses = createPauses(clock);
  /** Returns whether there was one. */
  return async (organizationId) => {
    const taken: Item[] = [];
    try {
      return await database.asOrganizations([organizationId], async (transaction) => {
        const item = await take(transaction, { organizationId, exceptIds: pauses.list() });
        if (item === null) return false;
        taken.push(item);
        await clear(transaction, item);
        return true;
      });
    } catch (cause) {
      const [item] = taken;
      if (item === undefined) throw cause;
      putOff(item, cause);
      return true;
    }
  };

  function putOff({ organizationId, id, deletedAt }: Item, cause: unknown): void {
    const pauseMs = pauseAfterFailureMs(clock.nowMs() - deletedAt.getTime());
    pauses.add(id, pauseMs);
    log.error(
      { err: cause, organization_id: organizationId, [`${what}_id`]: id, pause_ms: pauseMs },
      'what is left of a deletion cannot be removed, and is tried again later',
    );
  }
}
