import { toSearchKey } from '../platform/characters.ts';
import { isUtf8 } from 'node:buffer';
import { setImmediate as nextTurn } from 'node:timers/promises';
import {
  type CsvRecord,
  CsvError,
  type ContactIdentifier,
  contactIdentifiers,
  parseDateValue,
  readBoolean,
  readCsv,
  readField,
  readNumber,
  type RowIssue,
  unguardText,
} from '../audience/audience.ts';
import {
  defaultJsonLimits,
  isStorableNumber,
  readJson,
  showKey,
  storableNumber,
} from '../platform/http/json-text.ts';
import { readPastEvent, type ReadEvent } from './event-body.ts';
import type { EventSchema, FieldType } from './schema.ts';

/**
 * Files with events: CSV with a column for each field, or a JSON object a line (NDJSON), each of which is what
 * `POST /events/send` takes. Which of the two it is tells the first character.
 */
export type FileRow = {
  line: number;
  bytes: number;
  /** As it stands in the file, by which it is known again. */
  source: unknown;
  read: { kind: 'event'; event: Extract<ReadEvent, { kind: 'read' }> } | { kind: 'bad'; issues: RowIssue[] };
};

export type FileOptions = {
  /** Columns by name, and what each of them holds. */
  mapped: readonly { column: string; field: string }[];
  /** Columns that are passed over. */
  ignored: readonly string[];
};

/** The fields of events by the name of the event. */
export type Schemas = ReadonlyMap<string, EventSchema>;

export type OpenedFile =
  { kind: 'opened'; rows: AsyncGenerator<FileRow[], void, undefined> } | { kind: 'refused'; problem: string };

/** Throws a CsvError where the file cannot be read any further, also while its rows are read. */
export async function openEventFile(
  source: AsyncIterable<Buffer>,
  schemas: Schemas,
  options: FileOptions,
): Promise<OpenedFile> {
  const parts = source[Symbol.asyncIterator]();
  const first = await parts.next();
  if (first.done === true) return { kind: 'refused', problem: 'The file is empty.' };
  const whole = async function* (): AsyncGenerator<Buffer, void, undefined> {
    yield first.value;
    for (let part = await parts.next(); part.done !== true; part = await parts.next()) yield part.value;
  };
  const isJson = /^(?:\xef\xbb\xbf)?\s*\{/.test(first.value.toString('latin1', 0, 1_024));
  if (!isJson) return openCsv(readCsv(whole()), schemas, options);
  const [named] = [...options.mapped.map(({ column }) => column), ...options.ignored];
  if (named !== undefined) return { kind: 'refused', problem: `The file has no columns, and no ${named}.` };
  return { kind: 'opened', rows: readJsonLines(whole()) };
}

/** As that of a row of CSV. */
const lineBytesMax = 1_048_576;
const lineFeed = 0x0a;

async function* readJsonLines(source: AsyncIterable<Buffer>): AsyncGenerator<FileRow[], void, undefined> {
  let rest: Buffer = Buffer.alloc(0);
  let line = 0;
  const takeLine = (bytes: Buffer): FileRow[] => {
    line += 1;
    if (bytes.length > lineBytesMax) throw new CsvError(`Row ${line} is longer than ${lineBytesMax} bytes.`);
    const text = bytes
      .toString('utf8')
      .replace(/^\ufeff/, '')
      .trim();
    if (text === '') return [];
    const read = isUtf8(bytes) ? readJsonLine(bytes, text) : ['the row is not UTF-8'];
    return [{ line, bytes: bytes.length + 1, source: text, read: toRead(read, line, () => null) }];
  };
  for await (const part of source) {
    const bytes = rest.length === 0 ? part : Buffer.concat([rest, part]);
    const rows: FileRow[] = [];
    let at = 0;
    for (let end = bytes.indexOf(lineFeed); end !== -1; end = bytes.indexOf(lineFeed, at)) {
      rows.push(...takeLine(bytes.subarray(at, end)));
      at = end + 1;
    }
    rest = bytes.subarray(at);
    if (rest.length > lineBytesMax) takeLine(rest);
    if (rows.length > 0) yield rows;
    await nextTurn();
  }
  const last = rest.length === 0 ? [] : takeLine(rest);
  if (last.length > 0) yield last;
}

function readJsonLine(bytes: Buffer, text: string): ReadEvent | string[] {
  const json = readJson(bytes, text, defaultJsonLimits);
  if (json.kind === 'malformed') return [json.problem.replace('the body', 'the row')];
  return json.issues.length > 0 ? json.issues : readOne(json.value);
}

function readOne(body: unknown): ReadEvent | string[] {
  return readPastEvent(body)[0] ?? [];
}

function toRead(
  read: ReadEvent | readonly string[],
  line: number,
  columnOf: (issue: string) => string | null,
): FileRow['read'] {
  const issuesOf = (reasons: readonly string[]): FileRow['read'] => ({
    kind: 'bad',
    issues: reasons.slice(0, issuesMax).map((reason) => ({ line, column: columnOf(reason), reason })),
  });
  if (!('kind' in read)) return issuesOf(read);
  return read.kind === 'read' ? { kind: 'event', event: read } : issuesOf(read.issues);
}

/** For one row. More would not help: the columns are probably mixed up then. */
const issuesMax = 20;

type Target =
  | { kind: 'event' | 'contact_id' | 'occurred_at' | 'payload' | 'ignored' | 'nameless' }
  | { kind: 'identifier'; field: ContactIdentifier }
  | { kind: 'field'; field: string };

type Column = { name: string; target: Target };

async function openCsv(
  parts: AsyncGenerator<CsvRecord[], void, undefined>,
  schemas: Schemas,
  options: FileOptions,
): Promise<OpenedFile> {
  const first = await parts.next();
  const [head, ...rest] = first.done === true ? [] : first.value;
  if (head === undefined) return { kind: 'refused', problem: 'The file is empty.' };
  const mapped = mapColumns(head.cells, schemas, options);
  if (typeof mapped === 'string') return { kind: 'refused', problem: mapped };
  const rows = async function* (): AsyncGenerator<FileRow[], void, undefined> {
    yield rest.map((record) => readRecord(record, mapped, schemas));
    for await (const records of parts) yield records.map((record) => readRecord(record, mapped, schemas));
  };
  return { kind: 'opened', rows: rows() };
}

const columnsMax = 1_000;

/** Returns a sentence for what it does not know: a column that was dropped silently is missed when it is too late. */
function mapColumns(head: readonly string[], schemas: Schemas, options: FileOptions): Column[] | string {
  if (head.length > columnsMax) return `The file has more than ${columnsMax} columns.`;
  const isSame = (first: string, second: string) => toSearchKey(first.trim()) === toSearchKey(second.trim());
  const asked = [...options.mapped.map(({ column }) => column), ...options.ignored];
  const absent = asked.find((column) => !head.some((name) => isSame(name, column)));
  if (absent !== undefined) return `The file has no column "${showKey(absent)}".`;
  const fields = new Set([...schemas.values()].flatMap((schema) => schema.fields.map(({ name }) => name)));
  const columns: Column[] = [];
  for (const name of head) {
    const isIgnored = options.ignored.some((column) => isSame(name, column));
    const meant = options.mapped.find(({ column }) => isSame(name, column))?.field ?? name;
    const target: Target | null = isIgnored ? { kind: 'ignored' } : targetOf(meant.trim(), fields);
    const shown = showKey(name.trim());
    if (target === null)
      return (
        `Unknown column: "${shown}". Name what it holds (--map "${shown}=payload.FIELD"), or skip it (--ignore "${shown}"). ` +
        'Columns: event, contact_id, external_id, email, phone_number, occurred_at, payload, payload.FIELD, and the fields that events declare.'
      );
    const path = pathOf(target);
    if (path !== null && columns.some((other) => pathOf(other.target) === path))
      return `Two columns would both be ${showKey(path)}. Skip one of them with --ignore, or give it another name.`;
    columns.push({ name: shown, target });
  }
  const kinds = new Set(columns.map(({ target }) => target.kind));
  if (!kinds.has('event')) return 'No column is the event. Name it: --map "COLUMN=event".';
  if (!kinds.has('contact_id') && !kinds.has('identifier'))
    return 'No column is a contact_id, an external_id, an email or a phone_number, and one of these is needed to identify contacts.';
  return columns;
}

function targetOf(name: string, fields: ReadonlySet<string>): Target | null {
  if (name === '') return { kind: 'nameless' };
  const lowered = name.toLowerCase().replaceAll(/[ -]/g, '_');
  if (lowered === 'event' || lowered === 'contact_id' || lowered === 'occurred_at' || lowered === 'payload')
    return { kind: lowered };
  const identifier = contactIdentifiers.find((field) => field === lowered);
  if (identifier !== undefined) return { kind: 'identifier', field: identifier };
  if (lowered.startsWith(payloadPrefix) && name.length > payloadPrefix.length)
    return { kind: 'field', field: name.slice(payloadPrefix.length) };
  return fields.has(lowered) ? { kind: 'field', field: lowered } : null;
}

const payloadPrefix = 'payload.';

/** How the issues of the API name what the column holds. */
function pathOf(target: Target): string | null {
  if (target.kind === 'ignored' || target.kind === 'nameless') return null;
  if (target.kind === 'field') return `${payloadPrefix}${target.field}`;
  return target.kind === 'identifier' ? target.field : target.kind;
}

function readRecord(record: CsvRecord, columns: readonly Column[], schemas: Schemas): FileRow {
  const { line, bytes, cells, problem } = record;
  const columnOf = (issue: string) =>
    columns.find(({ target }) => pathOf(target) === /^[^\s:]*/.exec(issue)?.[0])?.name ?? null;
  const toRow = (read: ReadEvent | readonly string[]): FileRow => ({
    line,
    bytes,
    source: cells,
    read: toRead(read, line, columnOf),
  });
  if (problem !== null)
    return toRow([`${columns[problem.cell]?.name ?? `column ${problem.cell + 1}`} ${problem.reason}`]);
  if (cells.length !== columns.length)
    return toRow([`the row has ${cells.length} cells, and the header has ${columns.length}`]);
  const { body, misplaced } = readCells(cells, columns, schemas);
  return toRow(misplaced.length > 0 ? misplaced : readOne(body));
}

/** An empty cell says nothing. */
function readCells(
  cells: readonly string[],
  columns: readonly Column[],
  schemas: Schemas,
): { body: Record<string, unknown>; misplaced: string[] } {
  const given = columns.flatMap((column, index) => {
    const cell = cells[index] ?? '';
    return cell === '' ? [] : [{ column, cell: unguardText(cell), index }];
  });
  const name = given.find(({ column }) => column.target.kind === 'event')?.cell.trim() ?? '';
  const types = new Map(schemas.get(name)?.fields.map((field) => [field.name, field.type]));
  const body: Record<string, unknown> = {};
  const payload = new Map<string, unknown>();
  const misplaced: string[] = [];
  for (const { column, cell, index } of given) {
    const { target } = column;
    switch (target.kind) {
      case 'event':
      case 'contact_id':
        body[target.kind] = cell.trim();
        break;
      case 'identifier':
        body[target.field] = readField(target.field, cell);
        break;
      case 'occurred_at': {
        const date = parseDateValue(cell.trim());
        if (date === null)
          misplaced.push('occurred_at must be a date such as 2026-11-21, or a time with an offset or Z');
        // A day means its midnight in UTC, as in properties.
        else body.occurred_at = date.length === 10 ? `${date}T00:00:00.000Z` : date;
        break;
      }
      case 'payload': {
        const bytes = Buffer.from(cell);
        const json = readJson(bytes, cell, defaultJsonLimits);
        if (json.kind === 'malformed' || !isObject(json.value))
          misplaced.push('payload must be an object in JSON');
        else if (json.issues.length > 0) misplaced.push(...json.issues.map((issue) => `payload: ${issue}`));
        else for (const [key, value] of Object.entries(json.value)) payload.set(key, value);
        break;
      }
      case 'field': {
        const value = readValue(types.get(target.field), cell);
        if (typeof value === 'number' && !isStorableNumber(value))
          misplaced.push(`${payloadPrefix}${target.field} must be ${storableNumber}`);
        payload.set(target.field, value);
        break;
      }
      case 'nameless':
        misplaced.push(`column ${index + 1} has a value, but no name in the header`);
        break;
      case 'ignored':
        break;
    }
  }
  // Made at once: a key such as __proto__ is a field like any other.
  return { body: { ...body, payload: Object.fromEntries(payload) }, misplaced };
}

/** What cannot be read as its type stays a text, which the schema refuses. What is not declared is a text. */
function readValue(type: FieldType | undefined, cell: string): string | number | boolean {
  switch (type) {
    case 'number':
    case 'integer':
      return readNumber(cell.trim());
    case 'boolean':
      return readBoolean(cell);
    case 'date':
      return cell.trim();
    case 'string':
    case undefined:
      return cell;
  }
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
