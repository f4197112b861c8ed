import { findLongestEventsKeptMs, listEventsKept } from '../accounts/accounts.ts';
import { aheadMsMax } from './schema.ts';
import { type Clock, dateOf } from '../platform/clock.ts';
import type { Database } from '../platform/postgres/database.ts';
import { dropPartitionsBefore } from '../platform/postgres/partitions.ts';
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
  const { database, clock, organizationsMax = defaultOrganizationsMax } = tools;
  const startedMs = clock.nowMs() - behindMs;
  const longestMs = await findLongestEventsKeptMs(database);
  // Months are those of the arrival, and an event may arrive a little before it happens.
  if (longestMs !== null)
    await dropPartitionsBefore(database, ['events'], dateOf(startedMs - longestMs - aheadMsMax));
  let after: string | null = null;
  // Ends at the last organization, of which each page is one of larger ids.
  for (;;) {
    const page: Awaited<ReturnType<typeof listEventsKept>> = await listEventsKept(database, {
      after,
      limit: organizationsMax,
    });
    for (const { organizationId, keptMs } of page) {
      await deleteEventsBefore(tools, { organizationId, before: dateOf(startedMs - keptMs) }, signal);
      if (signal.aborted) return;
    }
    after = page.at(-1)?.organizationId ?? null;
    if (page.length < organizationsMax) return;
  }
}

async function deleteEventsBefore(
  { database, batchMax = defaultBatchMax }: RetentionTools,
  old: store.OldEvents,
  signal: AbortSignal,
): Promise<void> {
  const { organizationId } = old;
  const asOrganization = <Result>(work: Parameters<typeof database.asOrganizations<Result>>[1]) =>
    database.asOrganizations([organizationId], work);
  const numbers = await asOrganization((transaction) => store.listNumbers(transaction, organizationId));
  for (const eventNumber of numbers) {
    let deleted: number;
    do {
      if (signal.aborted) return;
      deleted = await asOrganization((transaction) =>
        store.deleteEventsBefore(transaction, { ...old, eventNumber }, batchMax),
      );
    } while (deleted === batchMax);
  }
  let forgotten: number;
  do {
    if (signal.aborted) return;
    forgotten = await asOrganization((transaction) => store.forgetImportsBefore(transaction, old, batchMax));
  } while (forgotten === batchMax);
}
