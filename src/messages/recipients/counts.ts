import type { NewId } from '../../platform/ids.ts';
import type { Database, Transaction } from '../../platform/postgres/database.ts';
import * as store from './counts-store.ts';
import type { MessageKey, RecipientKey } from '../keys.ts';

/**
 * The counts of a campaign's recipients by fate. No counter is incremented: a transaction that changes recipients
 * inserts a row that names the changed slices, and these slices are counted again soon afterwards. So the counts cannot
 * drift. They cost a few microseconds a recipient.
 */

/** Recipients in one slice, by ordinal. With fewer, more rows must be summed; with more, each count takes longer. */
export const sliceSize = 1_000;

/**
 * If at most this many recipients of a slice have the same fate, their ordinals are stored too. With fewer, a search
 * for a rare fate reads a thousand rows for each recipient found; with more, the counts grow larger than what they
 * save.
 */
const ordinalsMax = 20;

/** The slice in which a recipient is counted. */
export function countSliceOf({ ordinal }: { ordinal: number }): number {
  return Math.floor(ordinal / sliceSize);
}

/** To be called in the transaction that changes these recipients. Only those of campaigns may be given. */
export async function noteRecipientChanges(
  transaction: Transaction,
  newId: NewId,
  recipients: readonly RecipientKey[],
): Promise<void> {
  const changes = new Map<string, { message: MessageKey; id: string; slices: Set<number> }>();
  for (const { organizationId, messageId, ordinal } of recipients) {
    let change = changes.get(messageId);
    if (change === undefined) {
      change = { message: { organizationId, messageId }, id: newId(), slices: new Set() };
      changes.set(messageId, change);
    }
    change.slices.add(countSliceOf({ ordinal }));
  }
  const changed = [...changes.values()].flatMap(({ message, id, slices }) =>
    [...slices].map((slice) => ({ ...message, id, slice })),
  );
  if (changed.length > 0) await store.insertChanges(transaction, changed);
}

/**
 * Changes that one transaction takes and counts; a slice takes a few milliseconds. Changes that it does not count are
 * put back under their old ids: being the oldest, they are taken before newer ones.
 */
const defaultChangesMax = 200;
const defaultSlicesMax = 50;

export type CountingTools = {
  database: Database;
  /** Smaller in tests. */
  changesMax?: number;
  slicesMax?: number;
};

export type Counted = { hasCounted: boolean; hasMore: boolean };

/** Counts changed slices again, and returns whether there may be more. */
export async function countChangedRecipients(tools: CountingTools): Promise<Counted> {
  const { changesMax = defaultChangesMax, slicesMax = defaultSlicesMax } = tools;
  return tools.database.transactionByIndex(async (transaction) => {
    const { changes, slices } = await store.takeChanges(transaction, changesMax);
    const counted = slices.slice(0, slicesMax);
    const left = slices.slice(slicesMax);
    const organizationIds = [...new Set(slices.map(({ organizationId }) => organizationId))];
    await transaction.asOrganizations(organizationIds, async () => {
      if (counted.length > 0) {
        await store.lockCounts(transaction, counted);
        // A statement of its own, so that it sees everything committed before it got the locks.
        await store.recount(transaction, counted, { sliceSize, ordinalsMax });
      }
      if (left.length > 0) await store.insertChanges(transaction, left);
    });
    return { hasCounted: counted.length > 0, hasMore: changes > 0 };
  });
}
