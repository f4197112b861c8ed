import type { NewId } from '../../platform/ids.ts';
import type { Database, Transaction } from '../../platform/postgres/database.ts';
import * as store from './counts-store.ts';
import type { MessageKey, RecipientKey } from '../keys.ts';

/**
 * How many recipients of a campaign have come how far. Nobody counts up or down: whoever changes recipients leaves a
 * row that says in which slices, in the same transaction, and those slices are counted again soon afterwards. So the
 * counts cannot drift, and cost a few microseconds a recipient.
 */

/** Recipients of one slice, by ordinal. Fewer would make more sums to be read, more would take longer to be counted. */
export const sliceSize = 1_000;

/**
 * Of so many recipients of a slice that have the same fate it is kept which they are. With fewer, whoever looks for a
 * rare one reads a thousand rows for each; with more, the counts grow larger than what they spare.
 */
const ordinalsMax = 20;

/** To be called in the transaction that changes these recipients; those of other messages are left out. */
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
    change.slices.add(Math.floor(ordinal / sliceSize));
  }
  const changed = [...changes.values()].flatMap(({ message, id, slices }) =>
    [...slices].map((slice) => ({ ...message, id, slice })),
  );
  if (changed.length > 0) await store.insertChanges(transaction, changed);
}

/**
 * Taken by one transaction, and counted by it: a slice takes a few milliseconds. What it does not count it puts back
 * under its old id: as the oldest it is taken again before all that changes meanwhile.
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

/** Counts slices again in which something changed, and says whether there may be more of them. */
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
        // A statement of its own, so that it sees what was committed before the locks were to be had.
        await store.recount(transaction, counted, { sliceSize, ordinalsMax });
      }
      if (left.length > 0) await store.insertChanges(transaction, left);
    });
    return { hasCounted: counted.length > 0, hasMore: left.length > 0 || changes === changesMax };
  });
}
