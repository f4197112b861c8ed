import { findLongestEventsKeptMs, listEventsKept } from '../accounts/accounts.ts';
import { aheadMsMax } from './schema.ts';
import { type Clock, dateOf } from '../platform/clock.ts';
import type { Database } from '../platform/postgres/database.ts';
import { dropPartitionsBefore } from '../platform/postgres/partitions.ts';
import { workInTurns } from '../platform/queue/turns.ts';
import * as store from './store.ts';

/**
 * Deletes the events that are older than the plan of their organization keeps them, and what is noted of their imports.
 *
 * Months that nobody keeps any more are dropped whole. An organization with a shorter time than others, or beside one
 * that keeps its events for ever, has its events deleted in batches.
 *
 * Segments hear nothing of it: to them an event that is too old has left already (segments/nodes/event.ts). So that it
 * surely has, this stays an hour behind.
 */

export type RetentionTools = {
  database: Database;
  clock: Clock;
  /** Smaller in tests. */
  batchMax?: number;
  organizationsMax?: number;
};

const behindMs = 3_600_000;
/** A tenth of a second each. With more, erasures of deleted contacts would wait longer for the rows. */
const defaultBatchMax = 5_000;
const defaultOrganizationsMax = 500;

/** Ends early, between two batches, when the signal aborts. May run on any number of nodes at once. */
export async function deleteOldEvents(tools: RetentionTools, signal: AbortSignal): Promise<void> {
  const { database, clock } = tools;
  const startedMs = clock.nowMs() - behindMs;
  const longestMs = await findLongestEventsKeptMs(database);
  // Months are those of the arrival, and an event may arrive a little before it happens.
  if (longestMs !== null)
    await dropPartitionsBefore(database, ['events'], dateOf(startedMs - longestMs - aheadMsMax));
  await workInTurns(listOldEvents(tools, startedMs), (old) => deleteBatch(tools, old), signal);
}

/** What an organization has of them; `numbers` are those of the kinds of events that are not done yet. */
type OldEvents = store.OldEvents & { numbers: number[] | null };

async function* listOldEvents(
  { database, organizationsMax = defaultOrganizationsMax }: RetentionTools,
  startedMs: number,
): AsyncGenerator<OldEvents> {
  let after: string | null = null;
  // Ends at the last organization, of which each page is one of larger ids.
  for (;;) {
    const page: Awaited<ReturnType<typeof listEventsKept>> = await listEventsKept(database, {
      after,
      limit: organizationsMax,
    });
    for (const { organizationId, keptMs } of page)
      yield { organizationId, before: dateOf(startedMs - keptMs), numbers: null };
    after = page.at(-1)?.organizationId ?? null;
    if (page.length < organizationsMax) return;
  }
}

/** Of one kind of events, or after all kinds what is noted of imports. Returns whether there may be more. */
async function deleteBatch(
  { database, batchMax = defaultBatchMax }: RetentionTools,
  old: OldEvents,
): Promise<boolean> {
  return database.asOrganizations([old.organizationId], async (transaction) => {
    const numbers = old.numbers ?? (await store.listNumbers(transaction, old.organizationId));
    const [eventNumber] = numbers;
    old.numbers = numbers;
    if (eventNumber === undefined)
      return (await store.forgetImportsBefore(transaction, old, batchMax)) === batchMax;
    const deleted = await store.deleteEventsBefore(transaction, { ...old, eventNumber }, batchMax);
    if (deleted < batchMax) old.numbers = numbers.slice(1);
    return true;
  });
}
