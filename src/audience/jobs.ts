import { now } from '../platform/clock.ts';
import type { Database } from '../platform/postgres/database.ts';
import { type ChoreTools, startChore } from '../platform/queue/chore.ts';
import * as properties from './property-store.ts';
import { removeMembersOfDeleted } from './set-store.ts';

/** The channel on which a deletion wakes whoever clears up behind it. */
export const clearingChannel = 'postillion_clearing';

/** Rows of one transaction: fewer cost more commits, more hold their locks for longer than a request should wait. */
const membersMax = 5_000;
const contactsMax = 5_000;

/** Clears up behind lists, tags, segments and properties that were deleted, a bounded piece at a time. */
export function startClearing(tools: ChoreTools): { stop: () => Promise<void> } {
  return startChore(tools, {
    name: 'clearing up behind deletions',
    channel: clearingChannel,
    work: async (signal) => {
      const hadMembers = await removeMembersOfDeleted(tools.database, membersMax);
      const hadProperty = await forgetDeletedProperty(tools, signal);
      return hadMembers || hadProperty ? 0 : null;
    },
  });
}

/** From the beginning again if it is interrupted: contacts that were looked at cost next to nothing the next time. */
async function forgetDeletedProperty(
  tools: ChoreTools & { database: Database },
  signal: AbortSignal,
): Promise<boolean> {
  const property = await properties.takeDeletedProperty(tools.database);
  if (property === null) return false;
  let after: string | null = null;
  do {
    signal.throwIfAborted();
    after = await properties.forgetValues(tools.database, property, { after, limit: contactsMax });
  } while (after !== null);
  await properties.markForgotten(tools.database, property, now(tools.clock));
  return true;
}
