import { createHash } from 'node:crypto';
import { CsvError, type RowIssue } from '../audience/audience.ts';
import { now } from '../platform/clock.ts';
import { isConflict, type Transaction } from '../platform/postgres/database.ts';
import { throughOutages } from '../platform/postgres/outages.ts';
import { type FileOptions, type FileRow, openEventFile, type Schemas } from './import-file.ts';
import * as importStore from './import-store.ts';
import { type HistoryTools, storeHistory } from './intake.ts';
import { listSchemas } from './store.ts';

/**
 * Events out of a file of any size, which is read a part at a time. Some hundred rows are stored in one transaction,
 * together with a note of the part of the file that they are.
 *
 * Promised: a row is stored completely or not at all, and a bad one affects no other. Importing a file again stores
 * nothing twice, wherever the first import ended, and also while it is still running: of a part that is noted, only rows
 * that were bad are tried again.
 *
 * Not promised: that rows are known again in another file. A part is known by its rows and their lines, so that where
 * lines are changed or inserted, the rows around them are stored once more.
 */
export type EventImportOptions = FileOptions & {
  organizationId: string;
  /** The file. */
  source: AsyncIterable<Buffer>;
  /** Reads, checks and looks up, and writes nothing. */
  isDryRun: boolean;
  /** Ends the import after the present batch. */
  signal?: AbortSignal;
  /** Of the file, what is dealt with. */
  onProgress?: (progress: { rows: number; bytes: number }) => void;
  onIssues?: (issues: readonly RowIssue[]) => Promise<void>;
};

export type EventImportCounts = { rows: number; stored: number; storedBefore: number; bad: number };

export type EventImportOutcome =
  | { kind: 'refused'; problem: string }
  | {
      kind: 'ended';
      counts: EventImportCounts;
      /** Where the last row that was dealt with begins; 0 if there was none. */
      lastLine: number;
      /** Why it ended before the end of the file; null if it did not. */
      stop: { kind: 'interrupted' } | { kind: 'unreadable'; problem: string } | null;
    };

/** Whatever was stored is kept; the message says how far that was. */
export class EventImportBrokenError extends Error {
  override readonly name = 'EventImportBrokenError';
}

/** Rows of one transaction, as many as a request may bring. A file is known again by parts of this size: never change it. */
const partRowsMax = 500;

export async function importEvents(
  tools: HistoryTools,
  options: EventImportOptions,
): Promise<EventImportOutcome> {
  const { organizationId } = options;
  const schemas: Schemas = await tools.database.asOrganizations([organizationId], (transaction) =>
    listSchemas(transaction, organizationId),
  );
  const counts: EventImportCounts = { rows: 0, stored: 0, storedBefore: 0, bad: 0 };
  let lastLine = 0;
  let bytes = 0;
  const end = (stop: Extract<EventImportOutcome, { kind: 'ended' }>['stop']): EventImportOutcome => ({
    kind: 'ended',
    counts,
    lastLine,
    stop,
  });
  try {
    const opened = await openEventFile(options.source, schemas, options);
    if (opened.kind === 'refused') return opened;
    for await (const rows of collectRows(opened.rows)) {
      if (options.signal?.aborted === true) return end({ kind: 'interrupted' });
      const { issues, ...part } = await importPart(tools, options, rows);
      counts.rows += rows.length;
      counts.stored += part.stored;
      counts.storedBefore += part.storedBefore;
      counts.bad += part.bad;
      lastLine = rows.at(-1)?.line ?? lastLine;
      bytes += rows.reduce((sum, row) => sum + row.bytes, 0);
      if (issues.length > 0) await options.onIssues?.(issues);
      options.onProgress?.({ rows: counts.rows, bytes });
    }
    return end(null);
  } catch (cause) {
    if (cause instanceof CsvError)
      return lastLine === 0
        ? { kind: 'refused', problem: cause.message }
        : end({ kind: 'unreadable', problem: cause.message });
    const standing = lastLine === 0 ? 'before its first rows were written' : `after row ${lastLine}`;
    throw new EventImportBrokenError(
      `The import broke off ${standing}; what was written is kept, and the import can be run again with the same file`,
      { cause },
    );
  }
}

/** Always the same rows together, however the file arrives: a part that the file breaks off in is left out. */
async function* collectRows(parts: AsyncIterable<FileRow[]>): AsyncGenerator<FileRow[], void, undefined> {
  let collected: FileRow[] = [];
  for await (const rows of parts) {
    collected.push(...rows);
    while (collected.length >= partRowsMax) {
      yield collected.slice(0, partRowsMax);
      collected = collected.slice(partRowsMax);
    }
  }
  if (collected.length > 0) yield collected;
}

/** Attempts, each of which failed because of a concurrent change. With fewer, imports would fail beside a busy API. */
const conflictTriesMax = 20;

type PartOutcome = Omit<EventImportCounts, 'rows'> & { issues: RowIssue[] };

async function importPart(
  tools: HistoryTools,
  { organizationId, isDryRun }: EventImportOptions,
  rows: readonly FileRow[],
): Promise<PartOutcome> {
  const digest = createHash('sha256')
    .update(JSON.stringify(rows.map(({ line, source }) => [line, source])))
    .digest();
  const part = { organizationId, digest };
  for (let tries = 1; ; tries += 1) {
    try {
      const { outcome, haveContactsChanged } = await throughOutages(tools.clock, () =>
        tools.database.asOrganizationsByIndex([organizationId], (transaction) =>
          storePart(tools, transaction, { part, rows, isDryRun }),
        ),
      );
      if (haveContactsChanged) tools.onContactsChanged();
      return outcome;
    } catch (cause) {
      if (!isConflict(cause) || tries === conflictTriesMax) throw cause;
    }
  }
}

async function storePart(
  tools: HistoryTools,
  transaction: Transaction,
  given: { part: importStore.ImportedPart; rows: readonly FileRow[]; isDryRun: boolean },
): Promise<{ outcome: PartOutcome; haveContactsChanged: boolean }> {
  const { part, rows, isDryRun } = given;
  const at = now(tools.clock);
  const missing = isDryRun
    ? await importStore.findMissingRows(transaction, part)
    : await importStore.claimPart(transaction, part, at);
  const indexes = missing ?? [...rows.keys()];
  const wanted = indexes.flatMap((index) => {
    const row = rows[index];
    return row === undefined ? [] : [{ index, row }];
  });
  const fitting = wanted.flatMap(({ index, row }) =>
    row.read.kind === 'event' ? [{ index, line: row.line, event: row.read.event }] : [],
  );
  const { errors, haveContactsChanged } = await storeHistory(tools, transaction, {
    organizationId: part.organizationId,
    events: fitting.map(({ event }) => event),
    at,
    isDryRun,
  });
  const refused = fitting.flatMap(({ index, line }, position) => {
    const error = errors[position] ?? null;
    return error === null ? [] : [{ index, issues: [{ line, column: null, reason: error.message }] }];
  });
  const unread = wanted.flatMap(({ index, row }) =>
    row.read.kind === 'bad' ? [{ index, issues: row.read.issues }] : [],
  );
  const bad = [...refused, ...unread].sort((first, second) => first.index - second.index);
  if (!isDryRun && (bad.length > 0 || missing !== null))
    await importStore.setMissingRows(
      transaction,
      part,
      bad.map(({ index }) => index),
    );
  return {
    outcome: {
      stored: wanted.length - bad.length,
      storedBefore: rows.length - wanted.length,
      bad: bad.length,
      issues: bad.flatMap(({ issues }) => issues),
    },
    haveContactsChanged,
  };
}
