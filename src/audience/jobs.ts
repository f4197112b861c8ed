import { dateOf, now } from '../platform/clock.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { type ChoreTools, startChore } from '../platform/queue/chore.ts';
import { createPauses, pauseAfterFailureMs } from '../platform/queue/pauses.ts';
import * as properties from './property-store.ts';
import { removeMembersOfDeleted, takeDeletedSet } from './set-store.ts';

/**
 * Rows in one transaction. With fewer, more commits are needed; with more, locks are held longer than a request should
 * wait.
 */
const defaultMembersMax = 5_000;
const defaultContactsMax = 5_000;
/** Transactions that began to write values before the deletion have ended by then. */
const writersDoneMs = 60_000;

export type ClearingTools = ChoreTools & {
  /** Smaller in tests. */
  membersMax?: number;
  contactsMax?: number;
};

/**
 * Removes what is left of deleted lists, tags, segments and properties, a bounded piece at a time. If that fails for
 * one of them, only that one is postponed, so that it does not block others.
 */
export function startClearing(tools: ClearingTools): { stop: () => Promise<void> } {
  const { database, clock, membersMax = defaultMembersMax, contactsMax = defaultContactsMax } = tools;
  const sets = createClearer(tools, {
    what: 'set',
    take: takeDeletedSet,
    clear: (transaction, set) => removeMembersOfDeleted(transaction, set, membersMax),
  });
  const values = createClearer(tools, {
    what: 'property',
    take: (transaction, exceptIds) => {
      const deletedBefore = dateOf(clock.nowMs() - writersDoneMs);
      return properties.takeDeletedProperty(transaction, { deletedBefore, exceptIds });
    },
    clear: async (transaction, property) => {
      const until = await properties.forgetValues(transaction, property, contactsMax);
      await properties.markForgotten(transaction, property, until, now(clock));
    },
  });
  return startChore(tools, {
    name: 'clearing up after deletions',
    topic: 'clearing',
    work: async () => {
      const hadMembers = await sets.clearSome();
      const hadValues = await values.clearSome();
      if (hadMembers || hadValues) return 'at once';
      // Postponed ones are tried when the chore wakes by itself.
      const deletedAt = await properties.findFirstDeletedAt(database, values.listPutOff());
      return deletedAt && dateOf(deletedAt.getTime() + writersDoneMs);
    },
  });
}

type Deleted = { organizationId: string; id: string; deletedAt: Date };

type Clearing<Item extends Deleted> = {
  /** Its name in the log. */
  what: string;
  /** The next one, of any organization, that is none of these. */
  take: (transaction: Transaction, exceptIds: readonly string[]) => Promise<Item | null>;
  /** Does a bounded piece of what is to be done about it, as its organization. */
  clear: (transaction: Transaction, item: Item) => Promise<void>;
};

/** Each process has its own list of postponed ones, so a new process tries everything once. */
function createClearer<Item extends Deleted>(
  { database, clock, log }: ClearingTools,
  { what, take, clear }: Clearing<Item>,
): { clearSome: () => Promise<boolean>; listPutOff: () => string[] } {
  const pauses = createPauses(clock);
  return {
    /** Returns whether there was one. */
    clearSome: async () => {
      const taken: Item[] = [];
      try {
        return await database.transaction(async (transaction) => {
          const item = await take(transaction, pauses.list());
          if (item === null) return false;
          taken.push(item);
          await transaction.asOrganizations([item.organizationId], () => clear(transaction, item));
          return true;
        });
      } catch (cause) {
        const [item] = taken;
        if (item === undefined) throw cause;
        putOff(item, cause);
        return true;
      }
    },
    listPutOff: pauses.list,
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
