import { dateOf, now } from '../platform/clock.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { type ChoreTools, startChore } from '../platform/queue/chore.ts';
import * as properties from './property-store.ts';
import { removeMembersOfDeleted, takeDeletedSet } from './set-store.ts';

/** The channel on which a deletion wakes whoever clears up behind it. */
export const clearingChannel = 'postillion_clearing';

/** Rows of one transaction: fewer cost more commits, more hold their locks for longer than a request should wait. */
const membersMax = 5_000;
const contactsMax = 5_000;
/** Whoever began to write values before the deletion is done by then. */
const writersDoneMs = 60_000;

/** Clears up behind lists, tags, segments and properties that were deleted, a bounded piece at a time. */
export function startClearing(tools: ChoreTools): { stop: () => Promise<void> } {
  const { database, clock } = tools;
  return startChore(tools, {
    name: 'clearing up behind deletions',
    channel: clearingChannel,
    work: async () => {
      const hadMembers = await database.transaction(removeSomeMembers);
      const hadValues = await database.transaction((transaction) =>
        forgetSomeValues(transaction, now(clock)),
      );
      if (hadMembers || hadValues) return 'at once';
      const deletedAt = await properties.findFirstDeletedAt(database);
      return deletedAt && dateOf(deletedAt.getTime() + writersDoneMs);
    },
  });
}

/** Returns whether there was a set that was deleted. */
async function removeSomeMembers(transaction: Transaction): Promise<boolean> {
  const set = await takeDeletedSet(transaction);
  if (set === null) return false;
  await transaction.asOrganizations([set.organizationId], () =>
    removeMembersOfDeleted(transaction, set, membersMax),
  );
  return true;
}

/** Returns whether there was a property to be forgotten. */
async function forgetSomeValues(transaction: Transaction, at: Date): Promise<boolean> {
  const deletedBefore = dateOf(at.getTime() - writersDoneMs);
  const property = await properties.takeDeletedProperty(transaction, deletedBefore);
  if (property === null) return false;
  await transaction.asOrganizations([property.organizationId], async () => {
    const until = await properties.forgetValues(transaction, property, contactsMax);
    await properties.markForgotten(transaction, property, until, at);
  });
  return true;
}
