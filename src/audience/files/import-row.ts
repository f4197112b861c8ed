import type { Channel } from '../../channels/channel.ts';
import { createValidation, type TextFormat, type Validator } from '../../platform/http/validation.ts';
import { type ContactField, contactFields, type ContactFormat } from '../contact-fields.ts';
import { emptyContact, mergeContact, type Properties } from '../contact-values.ts';
import { type CsvRecord, splitCell } from './csv-reader.ts';
import { unguardText } from './csv-writer.ts';
import { type Column, pathOf } from './import-columns.ts';
import type { PlannedRow } from './import-plan.ts';
import {
  audienceFormats,
  type ConsentState,
  contactPatch,
  type ContactInput,
  listBody,
  type Property,
  type PropertyValue,
  tagBody,
} from '../schema.ts';

/** A row of the file that says something of a contact. */
export type ImportRow = PlannedRow & {
  /** Of the file, where the row begins. */
  line: number;
  listNames: readonly string[];
  tagNames: readonly string[];
};

/** What is wrong with a row: with one of its columns, or with the whole. */
export type RowIssue = { line: number; column: string | null; reason: string };

export type ReadRow = { kind: 'row'; row: ImportRow } | { kind: 'bad'; issues: RowIssue[] };

/** Checks a record exactly as the API checks a body: the schema first, then what the properties demand. */
export type RowReader = (record: CsvRecord) => ReadRow;

export function createRowReader(columns: readonly Column[], properties: Properties): RowReader {
  const validators = compileValidators();
  const columnsByPath = new Map(columns.map(({ name, target }) => [pathOf(target) ?? '', name]));
  return (record) => {
    const { line, cells } = record;
    const issues: RowIssue[] = [];
    const say = (column: string | null, reason: string) => issues.push({ line, column, reason });
    if (record.problem !== null) {
      const column = columns[record.problem.cell]?.name ?? `column ${record.problem.cell + 1}`;
      say(column, `${column} ${record.problem.reason}`);
    } else if (cells.length !== columns.length) {
      say(null, `the row has ${cells.length} cells, and the header has ${columns.length}`);
    }
    if (issues.length > 0) return { kind: 'bad', issues };

    const { input, names, misplaced } = readCells(cells, columns);
    // Composes names and values, so that it comes first.
    const said = validators.contact(input);
    const merged = mergeContact(emptyContact, input, properties);
    const found = [
      ...misplaced,
      ...said,
      ...(merged.kind === 'invalid' ? merged.issues : []),
      ...names.list.flatMap((name) => validators.list({ name }).map((issue) => `lists: ${issue}`)),
      ...names.tag.flatMap((name) => validators.tag({ name }).map((issue) => `tags: ${issue}`)),
    ];
    if (merged.kind === 'invalid' || found.length > 0) {
      // A value of a wrong type is reported by both checks.
      for (const issue of [...new Set(found)].slice(0, issuesMax)) {
        say(columnsByPath.get(pathOfIssue(issue)) ?? null, issue);
      }
      return { kind: 'bad', issues };
    }
    return {
      kind: 'row',
      row: { line, input, values: merged.values, listNames: names.list, tagNames: names.tag },
    };
  };
}

function compileValidators(): Record<'contact' | 'list' | 'tag', Validator> {
  const { compile } = createValidation(importFormats());
  return { contact: compile(contactPatch), list: compile(listBody), tag: compile(tagBody) };
}

/** A file has few locales, and to look at one costs as much as to read the whole row. */
function importFormats(): Record<string, TextFormat> {
  const { locale } = audienceFormats;
  return { ...audienceFormats, locale: { ...locale, test: rememberAnswers(locale.test) } };
}

/** As many as there are of what repeats; what does not repeat is asked each time. */
const answersMax = 1_000;
/** So that what is remembered stays small. */
const rememberedLengthMax = 35;

function rememberAnswers(test: (text: string) => boolean): (text: string) => boolean {
  const answers = new Map<string, boolean>();
  return (text) => {
    let answer = answers.get(text);
    if (answer !== undefined) return answer;
    answer = test(text);
    // Copied: a part of a text keeps all of it in memory.
    if (answers.size < answersMax && text.length <= rememberedLengthMax) {
      answers.set(Buffer.from(text).toString(), answer);
    }
    return answer;
  };
}

/** For one row. More would not help: the columns are probably mixed up then. */
const issuesMax = 20;

/** Issues begin with the path of their field. */
export function pathOfIssue(issue: string): string {
  return /^[^\s:]*/.exec(issue)?.[0] ?? '';
}

/** The API takes no more lists, and no more tags, of one contact at once either. */
const namesMax = 100;

type SetNames = { list: readonly string[]; tag: readonly string[] };

/** An empty cell says nothing: what is there stays. */
function readCells(
  cells: readonly string[],
  columns: readonly Column[],
): { input: ContactInput; names: SetNames; misplaced: string[] } {
  const input: ContactInput = {};
  const properties: Record<string, PropertyValue> = {};
  const consent: Partial<Record<Channel, ConsentState>> = {};
  const names: SetNames = { list: [], tag: [] };
  const misplaced: string[] = [];
  let hasProperties = false;
  let hasConsent = false;
  for (let index = 0; index < columns.length; index += 1) {
    const cell = cells[index] ?? '';
    const column = columns[index];
    if (cell === '' || column === undefined) continue;
    const { target } = column;
    switch (target.kind) {
      case 'field':
        input[target.field] = readField(target.field, unguardText(cell));
        break;
      case 'property':
        properties[target.property.key] = readProperty(target.property, unguardText(cell));
        hasProperties = true;
        break;
      case 'consent':
        // The schema says what else is not allowed.
        consent[target.channel] = cell.trim().toLowerCase() as ConsentState;
        hasConsent = true;
        break;
      case 'sets': {
        const parts = splitCell(unguardText(cell));
        const path = `${target.setKind}s`;
        if (parts === null) misplaced.push(`${path} must be names separated by semicolons`);
        else if (parts.length > namesMax) misplaced.push(`${path} must have at most ${namesMax} names`);
        else names[target.setKind] = parts;
        break;
      }
      case 'nameless':
        misplaced.push(`column ${index + 1} has a value, but no name in the header`);
        break;
      case 'ignored':
        break;
    }
  }
  if (hasProperties) input.properties = properties;
  if (hasConsent) input.consent = consent;
  return { input, names, misplaced };
}

const trim = (text: string) => text.trim();

/** What a cell says that holds a field of a contact. */
export function readField(field: ContactField, text: string): string {
  return readers[contactFields[field].schema.format](text);
}

/** By the format of the field. */
const readers: Record<ContactFormat, (text: string) => string> = {
  'single-line': (text) => text,
  'idn-email': trim,
  'phone-number': (text) => withoutPunctuation(text.trim()),
  locale: trim,
  timezone: trim,
};

/** `+1 (415) 555-0123`. A `(0)` is left in, and refused: only its country knows whether it is dialled. */
function withoutPunctuation(phoneNumber: string): string {
  return phoneNumber.includes('(0') ? phoneNumber : phoneNumber.replace(/[\s().\-/]/g, '');
}

/** What cannot be read as its type stays a text, which the check of the property refuses. */
function readProperty({ type }: Property, text: string): PropertyValue {
  switch (type) {
    case 'string':
      return text;
    case 'number':
      return readNumber(text.trim());
    case 'boolean':
      return readBoolean(text);
    case 'date':
      return text.trim();
  }
}

const decimalPattern = /^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d{1,3})?$/i;

/**
 * A decimal number, or the text that is none. No thousands separators and no decimal commas: `1,234` is two numbers,
 * depending on who reads it.
 */
export function readNumber(text: string): number | string {
  return text.length <= numberLengthMax && decimalPattern.test(text) ? Number(text) : text;
}

const numberLengthMax = 100;

/** True or false, or the text that is neither. */
export function readBoolean(text: string): boolean | string {
  return booleans.get(text.trim().toLowerCase()) ?? text;
}

const booleans = new Map([
  ['true', true],
  ['yes', true],
  ['1', true],
  ['false', false],
  ['no', false],
  ['0', false],
]);
