import { type Clock, dateOf, now } from '../platform/clock.ts';
import { type Database, isUndefinedTable } from '../platform/postgres/database.ts';
import { listOwnedTables } from './owned-table-store.ts';
import type { StorageKind, StorageUsage } from './schema.ts';
import * as store from './storage-store.ts';

/**
 * What organizations take of the disk: all their rows in all tables, as PostgreSQL has them, without indexes and free
 * space. It is measured and never added up, so that accepting a message costs nothing for it, and no mistake lasts: once an
 * hour one node reads every table page by page, for all organizations at once. Attachments and other large values are not
 * read, since PostgreSQL knows their size.
 *
 * Not promised: a row that moves to another page meanwhile may be counted twice or be left out, until the next time.
 */
export type StorageTools = {
  database: Database;
  clock: Clock;
  /** Smaller in tests. */
  pagesAtOnce?: number;
};

/**
 * Whose rows they are to a user; what is not named here is `other`, and null is not counted. A test asks for each table.
 */
export const kindOfTable: Readonly<Record<string, StorageKind | null>> = {
  attachment_contents: 'attachments',

  campaign_slices: 'messages',
  campaigns: 'messages',
  chat_app_events: 'messages',
  delivery_queue: 'messages',
  delivery_slices: 'messages',
  message_contents: 'messages',
  message_tags: 'messages',
  messages: 'messages',
  provider_ids: 'messages',
  push_engagements: 'messages',
  recipient_changes: 'messages',
  recipient_counts: 'messages',
  recipients: 'messages',
  webhook_attempts: 'messages',
  webhook_deliveries: 'messages',
  webhook_events: 'messages',
  webhook_outbox: 'messages',

  consent_grants: 'audience',
  contact_changes: 'audience',
  contact_properties: 'audience',
  contact_sets: 'audience',
  contacts: 'audience',
  devices: 'audience',
  memberships: 'audience',
  segments: 'audience',
  suppressions: 'audience',

  conversions: 'events',
  event_definitions: 'events',
  events: 'events',
  pending_conversions: 'events',

  chat_templates: 'templates',
  templates: 'templates',

  // Kept for support, for a week: no organization can delete of it, nor asked for it.
  request_log: null,
};

/** 8 MB, some hundred milliseconds: with more a statement might meet its time limit, with fewer there are more of them. */
const defaultPagesAtOnce = 1_024;
/** Longer than a table takes. A measurement that says nothing for so long was that of a node that died. */
const claimMs = 60 * 60_000;
/** With the hour between two runs of housekeeping: about an hour, whatever the number of nodes. */
const pauseMinMs = 50 * 60_000;
/** Measuring takes a twentieth of the time at most. */
const pauseFactor = 20;

/** Measures unless another node does, or did a while ago. */
export async function measureStorageWhenDue(tools: StorageTools, signal: AbortSignal): Promise<void> {
  const { database, clock } = tools;
  if (!(await store.claimMeasuring(database, now(clock), dateOf(clock.nowMs() + claimMs)))) return;
  const outcome = await measureStorage(tools, signal);
  if (outcome === 'interrupted') await store.putOffMeasuring(database, now(clock));
}

/** Measures now. What it has found when it is aborted is thrown away. */
export async function measureStorage(
  { database, clock, pagesAtOnce = defaultPagesAtOnce }: StorageTools,
  signal: AbortSignal,
): Promise<'measured' | 'interrupted'> {
  const startedMs = clock.monotonicMs();
  const measured = new Map<string, Pick<StorageUsage, 'bytes' | 'bytesByKind'>>();
  for (const table of await listOwnedTables(database)) {
    const { [table.table]: kind = 'other' } = kindOfTable;
    if (kind === null) continue;
    for (let from = 0; from < table.pages; from += pagesAtOnce) {
      if (signal.aborted) return 'interrupted';
      const pages = { from, to: from + pagesAtOnce };
      const found = await store.measurePages(database, table, pages).catch(noneOfDropped);
      for (const { organizationId, bytes } of found) {
        const usage = measured.get(organizationId) ?? { bytes: 0, bytesByKind: {} };
        usage.bytes += bytes;
        usage.bytesByKind[kind] = (usage.bytesByKind[kind] ?? 0) + bytes;
        measured.set(organizationId, usage);
      }
    }
    await store.putOffMeasuring(database, dateOf(clock.nowMs() + claimMs));
  }
  await store.saveUsage(database, measured, now(clock));
  const pauseMs = Math.max(pauseMinMs, pauseFactor * (clock.monotonicMs() - startedMs));
  await store.putOffMeasuring(database, dateOf(clock.nowMs() + pauseMs));
  return 'measured';
}

/** A partition may go by its age meanwhile. */
function noneOfDropped(cause: unknown): [] {
  if (isUndefinedTable(cause)) return [];
  throw cause;
}
