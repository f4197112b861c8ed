import { type Clock, now } from '../../platform/clock.ts';
import type { NewId } from '../../platform/ids.ts';
import type { Database, Transaction } from '../../platform/postgres/database.ts';
import { throughOutages } from '../../platform/postgres/outages.ts';
import type { Secrets } from '../../platform/secrets.ts';
import { shareIdentifiers } from '../consents.ts';
import type { Properties } from '../contact-values.ts';
import { CsvError, type CsvRecord, readCsv } from './csv-reader.ts';
import { type Column, type ColumnOptions, mapColumns, pathOf } from './import-columns.ts';
import { identifiersOf, type Plan, planBatch, type PlanCounts, type RowOutcome } from './import-plan.ts';
import { createRowReader, type ImportRow, pathOfIssue, type RowIssue, type RowReader } from './import-row.ts';
import { createdSetsMax, createImportSets, type ImportSets, resolveSets } from './import-sets.ts';
import * as store from './import-store.ts';
import { allInOrder, isOvertaken, isTaken, writePlan } from './plan-writing.ts';
import { loadProperties } from '../property-store.ts';
import { findSets } from '../set-store.ts';
import { hasOptOuts } from '../suppression-store.ts';
import { audienceFormats, listBody, tagBody } from '../schema.ts';

/**
 * Contacts out of a CSV file of any size. The file is read a part at a time, rows are checked as the API checks them,
 * and every few thousand are written in one transaction: contacts, their memberships, and the note that they changed.
 * While PostgreSQL writes a batch the next one is read and checked, and no further, so that the memory that this takes
 * does not grow with the file.
 *
 * Promised: a row is written completely or not at all, and an invalid row affects no other. If an import is
 * interrupted, the batches before are kept, and running it again over the same file creates nothing twice: rows find
 * the contacts that they created, and rows that would change nothing write nothing. Other imports, requests and
 * deletions may run at the same time: a batch that conflicts with them is decided again on top of their changes.
 *
 * Not promised: a dry run remembers nothing from one batch to the next. If rows far apart have the same identifier, it
 * counts a new contact more than once.
 */

export type ImportTools = { database: Database; clock: Clock; newId: NewId; secrets: Secrets };

export type ImportOptions = ColumnOptions & {
  organizationId: string;
  /** The file. */
  source: AsyncIterable<Buffer>;
  /** Lists and tags that every contact is added to, by name or id. Names that are unknown are made. */
  lists: readonly string[];
  tags: readonly string[];
  /** Reads, checks and looks up, and writes nothing. */
  isDryRun: boolean;
  /** Smaller in tests. */
  batchRowsMax?: number;
  batchBytesMax?: number;
  /** Ends the import after the present batch. */
  signal?: AbortSignal;
  onProgress?: (progress: ImportProgress) => void;
  /** Contacts were written: called after their transaction. */
  onChanged?: () => void;
  /** In the order of the rows, once those before them are written. */
  onIssues?: (issues: readonly RowIssue[]) => Promise<void>;
};

/** `rows` and `bytes` of the file that are dealt with. */
export type ImportProgress = { rows: number; bytes: number };

export type ImportCounts = PlanCounts & { rows: number };

export type ImportOutcome =
  | { kind: 'refused'; problem: string }
  | {
      kind: 'ended';
      counts: ImportCounts;
      /** Those that everybody was added to, as far as they are there: in a dry run, without those that it would make. */
      sharedLists: readonly SharedSet[];
      sharedTags: readonly SharedSet[];
      /** Names. */
      createdLists: readonly string[];
      createdTags: readonly string[];
      /** Of the file, where the last row that was dealt with begins; 0 if there was none. */
      lastLine: number;
      /** Why it ended before the end of the file; null if it did not. */
      stop: { kind: 'interrupted' } | { kind: 'unreadable'; problem: string } | null;
    };

export type SharedSet = { id: string; name: string };

/** Whatever was written is kept; the message says how far that was. */
export class ImportBrokenError extends Error {
  override readonly name = 'ImportBrokenError';
}

export async function importContacts(tools: ImportTools, options: ImportOptions): Promise<ImportOutcome> {
  const { organizationId, isDryRun } = options;
  const properties = await tools.database.asOrganizations([organizationId], (transaction) =>
    loadProperties(transaction, organizationId),
  );
  const parts = readCsv(options.source);
  try {
    const opened = await openFile(parts, properties, options);
    if (opened.kind === 'refused') return opened;
    const sets = createImportSets(tools, { organizationId, isDryRun });
    const shared = await resolveSharedSets(tools.database, sets, options);
    if (shared.kind === 'refused') return shared;
    const { columns } = opened;
    const run: ImportRun = {
      tools,
      options,
      columns,
      properties,
      propertyIds: columns.flatMap(({ target }) => (target.kind === 'property' ? [target.property.id] : [])),
      sets,
      sharedSetIds: shared.ids,
      expectsNew: false,
    };
    const ended = await importBatches(
      run,
      readBatches(opened.records, createRowReader(columns, properties), options),
    );
    const named = await throughOutages(tools.clock, () =>
      nameSharedSets(tools.database, organizationId, shared.ids),
    );
    const outcome = { ...ended, ...named };
    if (outcome.counts.created >= analyzedCreatedMin && !isDryRun) await analyze(tools);
    return outcome;
  } catch (cause) {
    // Of the first part of the file: nothing was done yet.
    if (cause instanceof CsvError) return { kind: 'refused', problem: cause.message };
    throw cause;
  } finally {
    await parts.return();
  }
}

/** By their ids, which say nothing to a person. */
async function nameSharedSets(
  database: Database,
  organizationId: string,
  ids: readonly string[],
): Promise<{ sharedLists: SharedSet[]; sharedTags: SharedSet[] }> {
  const found = await database.asOrganizations([organizationId], (transaction) =>
    findSets(transaction, organizationId, ids),
  );
  const sharedOf = (kind: 'list' | 'tag') =>
    ids.flatMap((id) => {
      const set = found.get(id);
      return set?.kind === kind ? [{ id, name: set.name }] : [];
    });
  return { sharedLists: sharedOf('list'), sharedTags: sharedOf('tag') };
}

type EndedImport = Omit<Extract<ImportOutcome, { kind: 'ended' }>, 'sharedLists' | 'sharedTags'>;

/** So many new contacts change what PostgreSQL should know of the tables; it would look by itself only minutes later. */
const analyzedCreatedMin = 5_000;
/**
 * And again during the import, whenever the number has grown by this factor: before PostgreSQL knows the size of a
 * set, searching its members by another set or a text may time out (200,000 members: half a minute).
 */
const analyzedAgainFactor = 4;

/** What fails here, a time-out on a slow disk perhaps, costs nothing but plans: the contacts are there. */
async function analyze({ database }: ImportTools): Promise<void> {
  await store.analyzeAudience(database).catch(() => undefined);
}

/** What one import works with. */
type ImportRun = {
  tools: ImportTools;
  options: ImportOptions;
  columns: readonly Column[];
  properties: Properties;
  propertyIds: readonly string[];
  sets: ImportSets;
  sharedSetIds: readonly string[];
  /**
   * Whether the last rows that were looked up were all of new contacts. The next ones are then inserted without
   * looking: if one of them is there after all, a unique index refuses the batch, and it is looked up. Measured,
   * that spares a seventh of what a first import costs PostgreSQL.
   */
  expectsNew: boolean;
};

type OpenedFile =
  | { kind: 'opened'; columns: readonly Column[]; records: AsyncGenerator<CsvRecord[], void, undefined> }
  | { kind: 'refused'; problem: string };

async function openFile(
  parts: AsyncGenerator<CsvRecord[], void, undefined>,
  properties: Properties,
  options: ImportOptions,
): Promise<OpenedFile> {
  const first = await parts.next();
  const [head, ...rest] = first.done === true ? [] : first.value;
  if (head === undefined) return { kind: 'refused', problem: 'The file is empty.' };
  if (head.problem !== null) {
    const problem = `Column ${head.problem.cell + 1} of the header ${head.problem.reason}.`;
    return { kind: 'refused', problem };
  }
  const mapped = mapColumns(head.cells, properties, options);
  if (mapped.kind === 'refused') return mapped;
  const records = async function* (): AsyncGenerator<CsvRecord[], void, undefined> {
    yield rest;
    yield* parts;
  };
  return { kind: 'opened', columns: mapped.columns, records: records() };
}

async function resolveSharedSets(
  database: Database,
  sets: ImportSets,
  { organizationId, lists, tags }: ImportOptions,
): Promise<{ kind: 'resolved'; ids: string[] } | { kind: 'refused'; problem: string }> {
  // Loaded here: every command and every role knows the audience, and few of them need what compiles schemas.
  const { createValidation } = await import('../../platform/http/validation.ts');
  const { compile } = createValidation(audienceFormats);
  const kinds = [
    { kind: 'list', references: lists, validate: compile(listBody) },
    { kind: 'tag', references: tags, validate: compile(tagBody) },
  ] as const;
  for (const { kind, references, validate } of kinds) {
    for (const name of references) {
      const [issue] = validate({ name });
      if (issue !== undefined)
        return { kind: 'refused', problem: `The ${kind} "${name}" cannot be created: ${issue}.` };
    }
  }
  const ids: string[] = [];
  for (const { kind, references } of kinds) {
    const resolved = await resolveSets(database, { organizationId, kind, references, sets });
    if (resolved.kind === 'refused') return resolved;
    ids.push(...resolved.ids);
  }
  return { kind: 'resolved', ids };
}

type Batch = {
  rows: ImportRow[];
  issues: RowIssue[];
  badRows: number;
  lastLine: number;
  bytes: number;
};

/**
 * Rows of one transaction. Fewer cost more commits and more round trips; with more the memory grows, others wait
 * longer for the same contacts, and it gets no faster.
 */
const defaultBatchRowsMax = 2_000;
/** Of the file. Rows of a usual length never reach it. */
const defaultBatchBytesMax = 8_388_608;

async function* readBatches(
  parts: AsyncIterable<CsvRecord[]>,
  readRow: RowReader,
  {
    batchRowsMax = defaultBatchRowsMax,
    batchBytesMax = defaultBatchBytesMax,
  }: Pick<ImportOptions, 'batchRowsMax' | 'batchBytesMax'>,
): AsyncGenerator<Batch | { unreadable: string }, void, undefined> {
  const begin = (): Batch => ({ rows: [], issues: [], badRows: 0, lastLine: 0, bytes: 0 });
  let batch = begin();
  try {
    for await (const records of parts) {
      for (const record of records) {
        const read = readRow(record);
        if (read.kind === 'row') {
          batch.rows.push(read.row);
        } else {
          batch.issues.push(...read.issues);
          batch.badRows += 1;
        }
        batch.lastLine = record.line;
        batch.bytes += record.bytes;
        if (batch.rows.length + batch.badRows >= batchRowsMax || batch.bytes >= batchBytesMax) {
          yield batch;
          batch = begin();
        }
      }
    }
  } catch (cause) {
    if (!(cause instanceof CsvError)) throw cause;
    if (batch.lastLine > 0) yield batch;
    yield { unreadable: cause.message };
    return;
  }
  if (batch.lastLine > 0) yield batch;
}

async function importBatches(
  run: ImportRun,
  batches: AsyncGenerator<Batch | { unreadable: string }, void, undefined>,
): Promise<EndedImport> {
  const { options, sets } = run;
  const counts: ImportCounts = { rows: 0, created: 0, updated: 0, unchanged: 0, bad: 0, keptUnsubscribed: 0 };
  let lastLine = 0;
  let bytes = 0;
  let analyzedNextAt = analyzedCreatedMin;
  const end = (stop: EndedImport['stop']): EndedImport => {
    const { list: createdLists, tag: createdTags } = sets.created;
    return { kind: 'ended', counts, createdLists, createdTags, lastLine, stop };
  };
  let coming = batches.next();
  try {
    for (;;) {
      const { value: batch, done } = await coming;
      if (done === true) return end(null);
      if ('unreadable' in batch) return end({ kind: 'unreadable', problem: batch.unreadable });
      if (options.signal?.aborted === true) return end({ kind: 'interrupted' });
      coming = batches.next();
      // Looked at only after this batch, and unhandled until then.
      coming.catch(() => undefined);
      const { issues, badRows, ...written } = await importBatch(run, batch);
      addCounts(counts, { ...written, bad: written.bad + badRows });
      counts.rows += batch.rows.length + batch.badRows;
      lastLine = batch.lastLine;
      bytes += batch.bytes;
      if (issues.length > 0) await options.onIssues?.(issues);
      options.onProgress?.({ rows: counts.rows, bytes });
      if (counts.created >= analyzedNextAt && !options.isDryRun) {
        await analyze(run.tools);
        analyzedNextAt = analyzedAgainFactor * counts.created;
      }
    }
  } catch (cause) {
    const standing = lastLine === 0 ? 'before its first rows were written' : `after row ${lastLine}`;
    throw new ImportBrokenError(
      `The import broke off ${standing}; what was written is kept, and the import can be run again with the same file`,
      { cause },
    );
  } finally {
    await coming.catch(() => undefined);
    await batches.return();
  }
}

function addCounts(sum: PlanCounts, counts: PlanCounts): void {
  sum.created += counts.created;
  sum.updated += counts.updated;
  sum.unchanged += counts.unchanged;
  sum.bad += counts.bad;
  sum.keptUnsubscribed += counts.keptUnsubscribed;
}

type ImportedBatch = PlanCounts & { issues: RowIssue[]; badRows: number };

/** In as many transactions as its rows need: mostly one. */
async function importBatch(run: ImportRun, batch: Batch): Promise<ImportedBatch> {
  const { rows, issues } = await learnSets(run, batch);
  issues.push(...batch.issues);
  const counts: PlanCounts = { created: 0, updated: 0, unchanged: 0, bad: 0, keptUnsubscribed: 0 };
  // Ends because every plan is for one row at least.
  for (let at = 0; at < rows.length;) {
    const planned = at === 0 ? rows : rows.slice(at);
    const plan = await carryOut(run, planned);
    at += plan.outcomes.length;
    if (plan.changedIds.length > 0 && !run.options.isDryRun) run.options.onChanged?.();
    addCounts(counts, plan.counts);
    for (const [index, outcome] of plan.outcomes.entries()) {
      const line = planned[index]?.line ?? 0;
      for (const reason of listReasons(outcome))
        issues.push({ line, column: columnOf(run, pathOfIssue(reason)), reason });
    }
  }
  issues.sort((first, second) => first.line - second.line);
  return { ...counts, issues, badRows: batch.badRows + batch.rows.length - rows.length };
}

/** Why a row is bad; none where it is not. */
function listReasons(outcome: RowOutcome): readonly string[] {
  switch (outcome.kind) {
    case 'created':
    case 'updated':
    case 'unchanged':
      return [];
    case 'taken':
      return [`${outcome.field} is in use by another contact`];
    case 'invalid':
      return outcome.issues;
  }
}

/** As the file calls it. */
function columnOf(run: ImportRun, path: string): string | null {
  return run.columns.find(({ target }) => pathOf(target) === path)?.name ?? null;
}

/** Without the rows that name a list or a tag too many. */
async function learnSets(
  run: ImportRun,
  { rows }: Batch,
): Promise<{ rows: ImportRow[]; issues: RowIssue[] }> {
  const { sets, tools } = run;
  await throughOutages(tools.clock, () => sets.learn('list', distinctNames(rows, 'listNames')));
  await throughOutages(tools.clock, () => sets.learn('tag', distinctNames(rows, 'tagNames')));
  const issues: RowIssue[] = [];
  const known = rows.filter(({ line, listNames, tagNames }) => {
    const areListsKnown = listNames.every((name) => sets.idOf('list', name) !== undefined);
    const areTagsKnown = tagNames.every((name) => sets.idOf('tag', name) !== undefined);
    for (const [path, areKnown] of [['lists', areListsKnown] as const, ['tags', areTagsKnown] as const]) {
      const reason = `${path}: an import creates at most ${createdSetsMax} new ones`;
      if (!areKnown) issues.push({ line, column: columnOf(run, path), reason });
    }
    return areListsKnown && areTagsKnown;
  });
  return { rows: known, issues };
}

function distinctNames(rows: readonly ImportRow[], names: 'listNames' | 'tagNames'): string[] {
  const distinct = new Set<string>();
  for (const row of rows) for (const name of row[names]) distinct.add(name);
  return [...distinct];
}

/** A list, a tag or a property was deleted: it is unknown whether the rows should still be imported. */
class TargetDeletedError extends Error {
  override readonly name = 'TargetDeletedError';
}

/** Attempts, each of which failed because of a concurrent change. With fewer, imports would fail beside a busy API. */
const conflictTriesMax = 20;
async function carryOut(run: ImportRun, rows: readonly ImportRow[]): Promise<Plan> {
  const { tools, options } = run;
  for (let tries = 1; ; tries += 1) {
    try {
      return await throughOutages(tools.clock, () =>
        tools.database.asOrganizations([options.organizationId], (transaction) =>
          options.isDryRun ? planRows(run, transaction, rows) : writeRows(run, transaction, rows),
        ),
      );
    } catch (cause) {
      if (isTaken(cause)) run.expectsNew = false;
      if (!isOvertaken(cause) || tries === conflictTriesMax) throw cause;
    }
  }
}

async function writeRows(
  run: ImportRun,
  transaction: Transaction,
  rows: readonly ImportRow[],
): Promise<Plan> {
  const { tools, options } = run;
  const { organizationId } = options;
  const setIds = [...new Set(rows.flatMap((row) => setIdsOf(run, row)))];
  const [, , haveOptedOut, there, plan] = await allInOrder([
    store.lockImports(transaction, organizationId),
    shareIdentifiers(transaction, organizationId),
    hasOptOuts(transaction, organizationId),
    store.lockTargets(transaction, { organizationId, setIds, propertyIds: run.propertyIds }),
    planRows(run, transaction, rows),
  ]);
  if (there.length < setIds.length + run.propertyIds.length) {
    throw new TargetDeletedError(
      'a list, a tag or a property that the file needs was deleted during the import',
    );
  }
  await writePlan(transaction, tools, {
    organizationId,
    plan,
    haveOptedOut,
    at: now(tools.clock),
    isLast: true,
  });
  return plan;
}

async function planRows(run: ImportRun, transaction: Transaction, rows: readonly ImportRow[]): Promise<Plan> {
  const { tools, options, properties } = run;
  const present = run.expectsNew ? [] : await findPresent(run, transaction, rows);
  return planBatch({
    rows,
    present,
    setIdsOf: (row) => setIdsOf(run, row),
    properties,
    newId: tools.newId,
    isDryRun: options.isDryRun,
  });
}

async function findPresent(
  run: ImportRun,
  transaction: Transaction,
  rows: readonly ImportRow[],
): Promise<store.PresentRow[]> {
  const present = await store.findPresent(transaction, {
    organizationId: run.options.organizationId,
    identifiers: identifiersOf(rows),
    setIds: [...new Set(rows.flatMap((row) => setIdsOf(run, row)))],
  });
  // A dry run has nothing that would refuse a batch.
  run.expectsNew = present.length === 0 && !run.options.isDryRun;
  return present;
}

function setIdsOf({ sets, sharedSetIds }: ImportRun, row: ImportRow): readonly string[] {
  if (row.listNames.length === 0 && row.tagNames.length === 0) return sharedSetIds;
  const idsOf = (kind: 'list' | 'tag', names: readonly string[]) =>
    names.flatMap((name) => sets.idOf(kind, name) ?? []);
  return [...sharedSetIds, ...idsOf('list', row.listNames), ...idsOf('tag', row.tagNames)];
}
