import { type Clock } from '../../platform/clock.ts';
import type { NewId } from '../../platform/ids.ts';
import { type Database, isConflict, type Transaction } from '../../platform/postgres/database.ts';
import { throughOutages } from '../../platform/postgres/outages.ts';
import type { Secrets } from '../../platform/secrets.ts';
import { optOutAll } from '../consents.ts';
import type { AddressedChannel } from '../contact-fields.ts';
import { addressedChannels } from '../suppressed-address.ts';
import { writeSuppressions } from '../suppressions.ts';
import { CsvError, readCsv } from './csv-reader.ts';
import { unguardText } from './csv-writer.ts';
import { ImportBrokenError } from './import.ts';
import type { RowIssue } from './import-row.ts';
import { readJsonItems } from './json-items.ts';
import {
  fieldNamed,
  type Fields,
  type FileSuppression,
  type KnownField,
  knownFields,
  readSuppression,
  refuseList,
  type SuppressionFormat,
  type SuppressionList,
} from './suppression-formats.ts';

/**
 * Suppressions out of a file of any size, CSV or JSON, that another provider has given. It is read a part at a time, and
 * some hundred rows are written in one transaction.
 *
 * Promised: a bad row is named and affects no other. What is suppressed for the same reason already stays as it is, so that
 * an import can be run again, after an interruption as well. What a person has unsubscribed from there is an opt-out of
 * campaigns here, which holds for whoever has the address, unless they have subscribed here since.
 *
 * Not promised: that a row which does not say when it came to be is older than what was said here. It counts as of now.
 */
export type SuppressionImportTools = { database: Database; clock: Clock; newId: NewId; secrets: Secrets };

export type SuppressionImportOptions = {
  organizationId: string;
  source: AsyncIterable<Buffer>;
  format: SuppressionFormat;
  list: SuppressionList | null;
  /** Of rows that name none. */
  channel: AddressedChannel;
  mapped: readonly { column: string; field: string }[];
  ignored: readonly string[];
  isDryRun: boolean;
  /** Ends the import after the present batch. */
  signal?: AbortSignal;
  onProgress?: (progress: { rows: number; bytes: number }) => void;
  /** Contacts were unsubscribed: called after their transaction. */
  onChanged?: () => void;
  onIssues?: (issues: readonly RowIssue[]) => Promise<void>;
};

export type SuppressionImportCounts = {
  rows: number;
  created: number;
  /** There for the same reason, or twice in the file. */
  unchanged: number;
  /** Of those who have subscribed here since. */
  subscribedSince: number;
  bad: number;
};

export type SuppressionImportOutcome =
  | { kind: 'refused'; problem: string }
  | {
      kind: 'ended';
      counts: SuppressionImportCounts;
      lastLine: number;
      stop: { kind: 'interrupted' } | { kind: 'unreadable'; problem: string } | null;
    };

type FileRow = {
  line: number;
  bytes: number;
  read: FileSuppression | { column: string | null; reason: string };
};

/** Fewer cost more commits; more keep those who write contacts with the same addresses waiting for longer. */
const batchRowsMax = 500;

export async function importSuppressions(
  tools: SuppressionImportTools,
  options: SuppressionImportOptions,
): Promise<SuppressionImportOutcome> {
  const problem = refuseList(options.format, options.list) ?? refuseMapping(options);
  if (problem !== null) return { kind: 'refused', problem };
  const opened = await openFile(tools, options);
  if (typeof opened === 'string') return { kind: 'refused', problem: opened };
  const counts = { rows: 0, created: 0, unchanged: 0, subscribedSince: 0, bad: 0 };
  let [lastLine, bytes] = [0, 0];
  const end = (stop: Extract<SuppressionImportOutcome, { kind: 'ended' }>['stop']) =>
    ({ kind: 'ended', counts, lastLine, stop }) as const;
  try {
    for await (const batch of collectBatches(opened)) {
      if (options.signal?.aborted === true) return end({ kind: 'interrupted' });
      const rows = batch.flatMap(({ read }) => ('address' in read ? [read] : []));
      const written = await writeThroughConflicts(tools, options, rows);
      counts.rows += batch.length;
      counts.bad += batch.length - rows.length;
      counts.created += written.created;
      counts.subscribedSince += written.subscribedSince;
      if (!options.isDryRun) counts.unchanged += rows.length - written.created - written.subscribedSince;
      if (written.haveContactsChanged) options.onChanged?.();
      lastLine = batch.at(-1)?.line ?? lastLine;
      bytes += batch.reduce((sum, row) => sum + row.bytes, 0);
      const issues = batch.flatMap(({ line, read }) => ('address' in read ? [] : [{ line, ...read }]));
      if (issues.length > 0) await options.onIssues?.(issues);
      options.onProgress?.({ rows: counts.rows, bytes });
    }
  } catch (cause) {
    if (cause instanceof CsvError) return end({ kind: 'unreadable', problem: cause.message });
    throw new ImportBrokenError(
      `The import broke off after row ${lastLine}; what was written is kept, and the import can be run again with the same file`,
      { cause },
    );
  }
  return end(null);
}

function refuseMapping({ mapped }: SuppressionImportOptions): string | null {
  const wrong = mapped.find(({ field }) => !knownFields.some((known) => known === field));
  return wrong === undefined
    ? null
    : `A column cannot hold ${wrong.field}: give one of ${knownFields.join(', ')}.`;
}

/** Which of the two it is tells the first character. Rows, or a sentence on why there are none. */
async function openFile(
  tools: Pick<SuppressionImportTools, 'clock'>,
  options: SuppressionImportOptions,
): Promise<AsyncGenerator<FileRow[], void, undefined> | string> {
  const parts = options.source[Symbol.asyncIterator]();
  const first = await parts.next();
  if (first.done === true) return 'The file is empty.';
  const whole = async function* (): AsyncGenerator<Buffer, void, undefined> {
    yield first.value;
    for (let part = await parts.next(); part.done !== true; part = await parts.next()) yield part.value;
  };
  const isJson = /^(?:\xef\xbb\xbf)?\s*[{[]/.test(first.value.toString('latin1', 0, 1_024));
  const toRead = createRowReader(tools, options);
  return isJson ? readItems(whole(), toRead) : openCsv(whole(), toRead);
}

type RowReader = {
  targetOf: (name: string) => KnownField | undefined;
  read: (values: readonly (readonly [name: string, value: string])[]) => FileRow['read'];
};

function createRowReader(
  { clock }: Pick<SuppressionImportTools, 'clock'>,
  { format, list, channel, mapped, ignored }: SuppressionImportOptions,
): RowReader {
  const named = new Map(mapped.map(({ column, field }) => [column, field as KnownField])); // As refuseMapping let through.
  const targetOf = (name: string) =>
    ignored.includes(name) ? undefined : (named.get(name) ?? fieldNamed(format, name));
  return {
    targetOf,
    read: (values) => {
      const fields: Partial<Record<KnownField, string>> = {};
      const columns: Partial<Record<KnownField, string>> = {};
      for (const [name, value] of values) {
        const target = targetOf(name);
        if (target === undefined || value.trim() === '') continue;
        fields[target] = value.trim();
        columns[target] = name;
      }
      const read = readSuppression(fields satisfies Fields, { clock, format, list, channel });
      if (!('field' in read)) return read;
      const column = columns[read.field] ?? null;
      return { column, reason: `${column ?? read.field} ${read.reason}` };
    },
  };
}

async function openCsv(
  source: AsyncIterable<Buffer>,
  { targetOf, read }: RowReader,
): Promise<AsyncGenerator<FileRow[], void, undefined> | string> {
  const parts = readCsv(source);
  let first;
  try {
    first = await parts.next();
  } catch (cause) {
    if (cause instanceof CsvError) return cause.message;
    throw cause;
  }
  const [head, ...rest] = first.done === true ? [] : first.value;
  if (head === undefined) return 'The file is empty.';
  const names = head.cells;
  if (!names.some((name) => targetOf(name) === 'address'))
    return 'No column has the addresses: the first line must have the names of the columns. Say with --map "COLUMN=address" which it is.';
  const toRow = ({ line, bytes, cells, problem }: (typeof rest)[number]): FileRow => {
    if (problem !== null)
      return { line, bytes, read: { column: names[problem.cell] ?? null, reason: problem.reason } };
    if (cells.length !== names.length) {
      const reason = `the row has ${cells.length} cells, and the header has ${names.length}`;
      return { line, bytes, read: { column: null, reason } };
    }
    return { line, bytes, read: read(names.map((name, index) => [name, unguardText(cells[index] ?? '')])) };
  };
  return (async function* () {
    yield rest.map(toRow);
    for await (const records of parts) yield records.map(toRow);
  })();
}

async function* readItems(
  source: AsyncIterable<Buffer>,
  { targetOf, read }: RowReader,
): AsyncGenerator<FileRow[], void, undefined> {
  for await (const items of readJsonItems(source)) {
    yield items.flatMap(({ line, bytes, value }): FileRow[] => {
      if (value === null) return [{ line, bytes, read: { column: null, reason: 'the object is not JSON' } }];
      const entries = Object.entries(value);
      // The last page of a list, which has no items.
      const isPage =
        entries.some(([, held]) => Array.isArray(held)) &&
        !entries.some(([name]) => targetOf(name) === 'address');
      if (isPage) return [];
      const texts = entries.flatMap(([name, held]) =>
        typeof held === 'string' || typeof held === 'number' ? [[name, `${held}`] as const] : [],
      );
      return [{ line, bytes, read: read(texts) }];
    });
  }
}

async function* collectBatches(
  parts: AsyncIterable<readonly FileRow[]>,
): AsyncGenerator<FileRow[], void, undefined> {
  let batch: FileRow[] = [];
  try {
    for await (const rows of parts) {
      for (const row of rows) {
        batch.push(row);
        if (batch.length < batchRowsMax) continue;
        yield batch;
        batch = [];
      }
    }
  } catch (cause) {
    if (cause instanceof CsvError && batch.length > 0) yield batch;
    throw cause;
  }
  if (batch.length > 0) yield batch;
}

type Written = { created: number; subscribedSince: number; haveContactsChanged: boolean };

/** More would be a fault, and not others in the way. */
const conflictsMax = 10;

/** The same again changes nothing, so that a batch is written anew after whatever broke it off. */
async function writeThroughConflicts(
  tools: SuppressionImportTools,
  options: SuppressionImportOptions,
  rows: readonly FileSuppression[],
): Promise<Written> {
  for (let conflicts = 1; ; conflicts += 1) {
    try {
      return await throughOutages(tools.clock, () =>
        tools.database.asOrganizations([options.organizationId], (transaction) =>
          writeRows(tools, transaction, options, rows),
        ),
      );
    } catch (cause) {
      if (!isConflict(cause) || conflicts === conflictsMax) throw cause;
    }
  }
}

async function writeRows(
  tools: SuppressionImportTools,
  transaction: Transaction,
  { organizationId, isDryRun }: SuppressionImportOptions,
  rows: readonly FileSuppression[],
): Promise<Written> {
  const written: Written = { created: 0, subscribedSince: 0, haveContactsChanged: false };
  if (isDryRun || rows.length === 0) return written;
  const source = { type: 'import', id: null } as const;
  const others = rows.filter(({ reason }) => reason !== 'unsubscribe');
  const placed = await writeSuppressions(
    transaction,
    tools,
    others.map(({ saidAt: _saidAt, ...row }) => ({ ...row, organizationId, source })),
  );
  written.created += placed.filter(({ isNew }) => isNew).length;
  for (const channel of addressedChannels) {
    for (const scope of ['all', 'marketing'] as const) {
      const optOuts = rows.filter(
        (row) => row.reason === 'unsubscribe' && row.channel === channel && row.scope === scope,
      );
      if (optOuts.length === 0) continue;
      const heard = await optOutAll(transaction, tools, channel, {
        organizationId,
        optOuts,
        scope,
        source,
      });
      written.created += heard.created;
      written.subscribedSince += heard.subscribedSince;
      written.haveContactsChanged ||= heard.haveContactsChanged;
    }
  }
  return written;
}
