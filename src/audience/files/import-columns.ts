import { toSearchKey } from '../../platform/characters.ts';
import { type Channel, channels } from '../../channels/channel.ts';
import { showKey } from '../../platform/http/json-text.ts';
import {
  type ContactField,
  contactFieldNames,
  contactFields,
  contactIdentifiers,
} from '../contact-fields.ts';
import type { Properties } from '../contact-values.ts';
import type { Property } from '../schema.ts';

/** What the columns of a CSV file hold, going by the names in its head. */

type Target =
  | { kind: 'field'; field: ContactField }
  | { kind: 'property'; property: Property }
  | { kind: 'consent'; channel: Channel }
  | { kind: 'sets'; setKind: 'list' | 'tag' }
  | { kind: 'ignored' }
  /** It has no name, so that nothing may stand in it. */
  | { kind: 'nameless' };

export type Column = {
  /** As the file calls it. */
  name: string;
  target: Target;
};

export type ColumnOptions = {
  /** Columns by name, and what each of them holds: the name of a field or the key of a property. */
  mapped: readonly { column: string; field: string }[];
  /** Columns that are passed over. */
  ignored: readonly string[];
};

export type MappedColumns = { kind: 'mapped'; columns: Column[] } | { kind: 'refused'; problem: string };

/** What people call the columns of sets, without case, blanks and punctuation. */
const namesOfSets = { lists: ['lists', 'list'], tags: ['tags', 'tag'] } as const;

/** The API takes no more properties of one contact either. */
const columnsMax = 1_000;

/** Refuses what it does not know: a column that was dropped silently is missed when it is too late. */
export function mapColumns(
  head: readonly string[],
  properties: Properties,
  options: ColumnOptions,
): MappedColumns {
  if (head.length > columnsMax) return refuse(`The file has more than ${columnsMax} columns.`);
  const names = head.map((name) => name.trim());
  const isNamed = (column: string) => names.some((name) => isSameName(name, column));
  const absent = [...options.mapped.map(({ column }) => column), ...options.ignored].filter(
    (column) => !isNamed(column),
  );
  if (absent.length > 0) {
    return refuse(`The file has no column ${showNames(absent)}. It has ${showNames(names)}.`);
  }

  const columns: Column[] = [];
  const unknown: string[] = [];
  for (const name of names) {
    const target = targetOf(name, properties, options);
    if (target === null) unknown.push(name);
    else columns.push({ name: showKey(name), target });
  }
  if (unknown.length > 0) return refuse(describeUnknown(unknown, properties));
  const problem = findAmbiguity(columns);
  return problem === null ? { kind: 'mapped', columns } : refuse(problem);
}

function refuse(problem: string): MappedColumns {
  return { kind: 'refused', problem };
}

function targetOf(name: string, properties: Properties, options: ColumnOptions): Target | null {
  if (name === '') return { kind: 'nameless' };
  if (options.ignored.some((column) => isSameName(name, column))) return { kind: 'ignored' };
  const mapped = options.mapped.find(({ column }) => isSameName(name, column));
  return resolveName(mapped?.field ?? name, properties);
}

function isSameName(first: string, second: string): boolean {
  return toSearchKey(first) === toSearchKey(second.trim());
}

/**
 * A field by its own name, then a property, then a field by another name that people have for it. `properties.KEY`
 * is always the property.
 */
function resolveName(name: string, properties: Properties): Target | null {
  const lowered = name.trim().toLowerCase();
  const bare = toBareName(lowered);
  if (lowered.startsWith(propertyPrefix)) {
    return toPropertyTarget(properties.get(lowered.slice(propertyPrefix.length)));
  }
  return (
    resolveField(bare, (field) => [toBareName(field)]) ??
    resolveConsent(bare) ??
    toPropertyTarget(properties.get(lowered) ?? findByBareKey(bare, properties)) ??
    resolveField(bare, namesOf)
  );
}

const propertyPrefix = 'properties.';

function toPropertyTarget(property: Property | undefined): Target | null {
  return property === undefined ? null : { kind: 'property', property };
}

/** Of two keys that differ in underscores only, neither is meant for certain. */
function findByBareKey(bare: string, properties: Properties): Property | undefined {
  const found = [...properties.values()].filter(({ key }) => toBareName(key) === bare);
  return found.length === 1 ? found[0] : undefined;
}

type FieldOrSets = ContactField | 'lists' | 'tags';

function namesOf(field: FieldOrSets): readonly string[] {
  return field === 'lists' || field === 'tags' ? namesOfSets[field] : contactFields[field].csvNames;
}

function resolveField(bare: string, namesOfEach: (field: FieldOrSets) => readonly string[]): Target | null {
  const field = contactFieldNames.find((candidate) => namesOfEach(candidate).includes(bare));
  if (field !== undefined) return { kind: 'field', field };
  if (namesOfEach('lists').includes(bare)) return { kind: 'sets', setKind: 'list' };
  return namesOfEach('tags').includes(bare) ? { kind: 'sets', setKind: 'tag' } : null;
}

function resolveConsent(bare: string): Target | null {
  const channel = channels.find((candidate) => bare === `${candidate}consent`);
  return channel === undefined ? null : { kind: 'consent', channel };
}

function toBareName(name: string): string {
  return name.toLowerCase().replace(/[^\p{L}\p{N}]/gu, '');
}

function describeUnknown(unknown: readonly string[], properties: Properties): string {
  const [first = ''] = unknown;
  const keys = [...properties.keys()].sort();
  return [
    `Unknown ${unknown.length === 1 ? 'column' : 'columns'}: ${showNames(unknown)}.`,
    `Name its field (--map "${showKey(first)}=FIELD"), skip it (--ignore "${showKey(first)}"), or define a property for it first.`,
    `Fields: ${[...contactFieldNames, ...channels.map((channel) => `${channel}_consent`), 'lists', 'tags'].join(', ')}.`,
    `Properties: ${keys.length === 0 ? 'none' : keys.join(', ')}.`,
  ].join(' ');
}

function findAmbiguity(columns: readonly Column[]): string | null {
  const seen = new Map<string, string>();
  for (const { name, target } of columns) {
    const path = pathOf(target);
    if (path === null) continue;
    const other = seen.get(path);
    if (other !== undefined) {
      return `The columns ${showNames([other, name])} would both be ${path}. Skip one of them with --ignore, or give it another name.`;
    }
    seen.set(path, name);
  }
  const hasIdentifier = contactIdentifiers.some((field) => seen.has(field));
  return hasIdentifier
    ? null
    : 'No column is an external_id, an email or a phone_number, and one of these is needed to identify contacts. Name it: --map "COLUMN=email".';
}

/** How the issues of the API name what the column holds; null for what is not imported. */
export function pathOf(target: Target): string | null {
  switch (target.kind) {
    case 'field':
      return target.field;
    case 'property':
      return `${propertyPrefix}${target.property.key}`;
    case 'consent':
      return `consent.${target.channel}`;
    case 'sets':
      return `${target.setKind}s`;
    case 'ignored':
    case 'nameless':
      return null;
  }
}

/** The name of a property's column in an export, by which an import finds it again. */
export function columnNameOf(property: Property, properties: Properties): string {
  const target = resolveName(property.key, properties);
  const isFound = target?.kind === 'property' && target.property.id === property.id;
  return isFound ? property.key : `${propertyPrefix}${property.key}`;
}

const shownNamesMax = 20;

function showNames(names: readonly string[]): string {
  const shown = names.slice(0, shownNamesMax).map((name) => `"${showKey(name)}"`);
  const left = names.length - shown.length;
  return left > 0 ? `${shown.join(', ')} and ${left} more` : shown.join(', ');
}
