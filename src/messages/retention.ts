import { findLongestKeptDays, listKeptDays } from '../accounts/accounts.ts';
import type { Clock } from '../platform/clock.ts';
import { lowestIdAt } from '../platform/ids.ts';
import type { Database } from '../platform/postgres/database.ts';
import { dropPartitionsBefore } from '../platform/postgres/partitions.ts';
import { workInTurns } from '../platform/queue/turns.ts';
import { forgetMessagesWithin } from '../sandbox/sandbox.ts';
import type { MessageChannels } from './channel.ts';
import { type KeptDays, keptSince, limitKept } from './kept.ts';
import * as store from './retention-store.ts';

/**
 * Removes messages, and what they say, when the time is over for which they are kept.
 *
 * **Partitions are dropped**, never emptied row by row: as soon as neither the installation nor any plan keeps what is in
 * them. Those of all tables of messages go in one transaction, and it is made sure of first that every message in them has
 * come to its end: a campaign that was paused a year ago keeps its partition. Counts of campaigns stay in `recipient_counts`
 * as they are: all of them are up to date before their recipients go, and a recount leaves a slice alone that has no
 * recipients.
 *
 * **An organization that keeps its messages for less time** sees them no more (kept.ts), and its rows go with their partition.
 * Only what its messages say is deleted before: it takes most of the disk, and is what must not be there any more. That is done
 * in batches, of which each organization has one in its turn.
 */
export type RetentionTools = {
  database: Database;
  clock: Clock;
  channels: MessageChannels;
  /** What is sent by something that is not over stays. */
  keeper: store.MessageKeeper;
  /** The limit of the installation. */
  installed: KeptDays;
  /** Smaller in tests. */
  batchMax?: number;
  organizationsMax?: number;
};

/** Contents of 20 kB: as much as a few hundredths of a second delete. */
const defaultBatchMax = 500;
const defaultOrganizationsMax = 500;

/** Ends early, between two steps, when the signal aborts. May run on any number of nodes at once. */
export async function removeOldMessages(tools: RetentionTools, signal: AbortSignal): Promise<void> {
  const { database, clock, installed } = tools;
  const nowMs = clock.nowMs();
  // First, since it waits for nobody: a partition cannot be dropped while somebody reads it.
  await deleteContentsOfShorterPlans(tools, nowMs, signal);
  if (signal.aborted) return;
  const longest = limitKept(installed, await findLongestKeptDays(database));
  // Then contents: they may go earlier than messages, and are what takes most of the disk.
  if (longest.content !== null)
    await dropPartitionsBefore(database, store.contentTables, keptSince(nowMs, longest.content), {
      mayGo: (connection, range) => store.areAllOver(connection, tools.keeper, range),
    });
  if (signal.aborted) return;
  if (longest.messages !== null)
    await dropPartitionsBefore(
      database,
      store.listMessageTables(tools.channels),
      keptSince(nowMs, longest.messages),
      {
        mayGo: (connection, range) => store.areAllOver(connection, tools.keeper, range),
        finish: async (transaction, range) => {
          if (!(await store.areAllCounted(transaction, range))) return false;
          // Copies in the sandbox would not be found any more when their contact is deleted.
          await forgetMessagesWithin(transaction, range);
          return true;
        },
      },
    );
}

async function deleteContentsOfShorterPlans(
  tools: RetentionTools,
  nowMs: number,
  signal: AbortSignal,
): Promise<void> {
  const { database, keeper, batchMax = defaultBatchMax } = tools;
  // Ends at the last old content: each batch of an organization begins where the one before it has ended.
  const deleteBatch = async (old: store.OldContents) => {
    const { seen, last } = await database.asOrganizations([old.organizationId], (transaction) =>
      store.deleteContentsBefore(transaction, keeper, old, batchMax),
    );
    old.after = last;
    return seen === batchMax;
  };
  await workInTurns(listShorterPlans(tools, nowMs), deleteBatch, signal);
}

async function* listShorterPlans(
  { database, installed, organizationsMax = defaultOrganizationsMax }: RetentionTools,
  nowMs: number,
): AsyncGenerator<store.OldContents> {
  let after: string | null = null;
  // Ends at the last organization, of which each page is one of larger ids.
  for (;;) {
    const page: Awaited<ReturnType<typeof listKeptDays>> = await listKeptDays(database, {
      after,
      limit: organizationsMax,
    });
    for (const { organizationId, ...plan } of page) {
      const { content } = limitKept(installed, plan);
      // What the installation keeps no longer goes with the partition.
      if (content === null || content === limitKept(installed, installed).content) continue;
      yield { organizationId, before: lowestIdAt(keptSince(nowMs, content).getTime()), after: null };
    }
    after = page.at(-1)?.organizationId ?? null;
    if (page.length < organizationsMax) return;
  }
}
