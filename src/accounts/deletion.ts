import { type Clock, now, sleep } from '../platform/clock.ts';
import type { Connection, Database } from '../platform/postgres/database.ts';
import { refusedWithinMs } from './keyring.ts';
import * as store from './deletion-store.ts';
import { listOwnedTables, type OwnedTable } from './owned-table-store.ts';

/**
 * The deletion of an organization with everything of it, in three steps, each of which may be killed and begun again.
 *
 * **Requested.** Its keys are refused, by every node within five seconds, and nothing more of it is begun: no job is
 * claimed, no campaign goes on, no chore finds it. What was accepted before, and hand-offs that were claimed, end as
 * ever, and their outcomes are written.
 *
 * **Under way.** Transactions of the organization see nothing of it any more (`Database.asOrganizations`): links,
 * devices and callbacks are unknown, and nobody writes a row for it. Those that began before are waited for. Its rows
 * are deleted in batches, each of which is a transaction of its own, table by table as the catalogue lists them. No
 * foreign key connects them, so any order will do, and triggers may write what was deleted before: so the tables are
 * gone through until nothing more is found.
 *
 * **Gone.** The row of the organization stays for an hour, without its name: a request whose key was looked at before may
 * take minutes to arrive, and would find nobody then who keeps it from writing. Housekeeping deletes it.
 *
 * What is not promised: a hand-off that takes longer than a minute may end when its rows are gone. Its outcome finds no
 * job then, and nothing is written, as after the death of its worker. A transaction that lasts longer may write rows
 * that stay. Rows without the organization's id, such as reports of providers that wait, go by themselves when they
 * find no recipient.
 */
export type DeletionTools = { database: Database; clock: Clock };

export type DeletionWork = {
  organizationId: string;
  /** Whether something of it is under way that should end first. */
  isAtWork: (connection: Connection, organizationId: string) => Promise<boolean>;
  /** Ends it between two batches. */
  signal: AbortSignal;
  onProgress: (rows: number) => void;
  /** Smaller in tests. */
  rowsMax?: number;
};

export type DeletionOutcome = { kind: 'deleted' | 'interrupted' | 'not_found'; rows: number };

/** Of the row of an organization that is gone. A large body may take five minutes to arrive (http/arrival.ts). */
export const goneMs = 60 * 60 * 1_000;
/** Hand-offs and transactions are waited for no longer than this: a mail server may take ten minutes for a message. */
const waitMaxMs = 60_000;
const waitPauseMs = 500;
/** Rows of a batch. With more, others wait longer for what it locks; with fewer, there are more commits. */
const defaultRowsMax = 1_000;
/** The second finds nothing, unless triggers have written something. More would be a writer that nothing holds. */
const passesMax = 10;
/** Of a table: others may lock its rows, and a statement may meet its time limit until it has few enough of them. */
const failuresMax = 10;

export async function deleteOrganization(tools: DeletionTools, work: DeletionWork): Promise<DeletionOutcome> {
  const { database, clock } = tools;
  const { organizationId, signal } = work;
  let rows = 0;
  const isInterrupted = () => signal.aborted;
  const state = await store.requestDeletion(database, organizationId);
  if (state === null) return { kind: 'not_found', rows };
  if (state === 'requested') {
    await pause(clock, refusedWithinMs, signal);
    await waitWhile(tools, signal, () => work.isAtWork(database, organizationId));
    if (isInterrupted()) return { kind: 'interrupted', rows };
  }
  await store.beginDeletion(database, organizationId);
  // They entered the role before that, and may write until they end.
  const transactions = await store.listTransactions(database);
  await waitWhile(tools, signal, () => store.isAnyUnderWay(database, transactions));

  // Ends at the first pass that finds nothing: nothing is written for the organization any more.
  for (let pass = 1; pass <= passesMax; pass += 1) {
    let found = 0;
    for (const table of await listOwnedTables(database)) {
      if (isInterrupted()) return { kind: 'interrupted', rows };
      found += await emptyTable(tools, table, {
        ...work,
        onProgress: (deleted) => {
          work.onProgress(rows + found + deleted);
        },
      });
    }
    rows += found;
    if (isInterrupted()) return { kind: 'interrupted', rows };
    if (found === 0) {
      await store.endDeletion(database, organizationId, now(clock));
      return { kind: 'deleted', rows };
    }
  }
  throw new Error(`something still writes rows of the organization ${organizationId}`);
}

/** Returns how many rows it has deleted. */
async function emptyTable(
  { database, clock }: DeletionTools,
  table: OwnedTable,
  { organizationId, signal, onProgress, rowsMax: rowsAtFirst = defaultRowsMax }: DeletionWork,
): Promise<number> {
  let deleted = 0;
  let rowsMax = rowsAtFirst;
  let failures = 0;
  let place: store.Place | null = { after: null, page: 0 };
  // Ends with the table, of which each batch is a later part, or after too many failures.
  while (place !== null && !signal.aborted) {
    try {
      const batch: store.DeletedRows = await store.deleteRows(database, table, {
        organizationId,
        place,
        rowsMax,
      });
      deleted += batch.deleted;
      place = batch.next;
      if (batch.deleted > 0) onProgress(deleted);
    } catch (cause) {
      const kind = store.explainFailure(cause);
      if (kind === 'gone') return deleted;
      failures += 1;
      if (kind === 'unknown' || failures > failuresMax) throw cause;
      if (kind === 'fewer') rowsMax = Math.max(1, Math.floor(rowsMax / 10));
      await pause(clock, waitPauseMs, signal);
    }
  }
  return deleted;
}

async function waitWhile(
  { clock }: DeletionTools,
  signal: AbortSignal,
  isSo: () => Promise<boolean>,
): Promise<void> {
  const endMs = clock.monotonicMs() + waitMaxMs;
  while (!signal.aborted && clock.monotonicMs() < endMs && (await isSo()))
    await pause(clock, waitPauseMs, signal);
}

/** Returns early, and as ever, when the signal aborts. */
async function pause(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
  await sleep(clock, ms, signal).catch((cause: unknown) => {
    if (!signal.aborted) throw cause;
  });
}
