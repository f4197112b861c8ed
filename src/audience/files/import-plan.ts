import type { NewId } from '../../platform/ids.ts';
import {
  contactFieldNames,
  contactFields,
  type ContactIdentifier,
  contactIdentifiers,
} from '../contact-fields.ts';
import { type ContactValues, mergeContact, type Properties } from '../contact-values.ts';
import type { ImportRow } from './import-row.ts';
import type { ContactToWrite, ContactVersion, Identifiers, Membership, PresentRow } from './import-store.ts';
import type { ContactInput } from '../schema.ts';

/**
 * What a batch of rows comes to, given the contacts that are there: decided row after row, each on top of those
 * before it, and then written all at once.
 *
 * A row means the contact that has the first of external_id, email and phone_number that the row has. By a later
 * one it means a contact only where that has nothing under the ones before: a family's phone number, or the address
 * of an office, does not make two people one. Such a row is refused, as is every other whose identifiers belong to
 * different contacts.
 */
export type Plan = {
  inserts: ContactToWrite[];
  updates: ContactToWrite[];
  memberships: Membership[];
  /** Contacts that were there, and are updated or get memberships. */
  touched: ContactVersion[];
  /** Contacts that are new, or changed, or belong to more than before. */
  changedIds: string[];
  counts: PlanCounts;
  issues: PlanIssue[];
  /** How many of the rows this plan is for; the others need another one, once this is carried out. */
  rowsPlanned: number;
};

export type PlanIssue = { line: number; field: string; reason: string };

export type PlanCounts = {
  created: number;
  updated: number;
  unchanged: number;
  bad: number;
  /** Rows with `subscribed` for a contact that had unsubscribed, and was left unsubscribed. */
  keptUnsubscribed: number;
};

export type PlanInput = {
  rows: readonly ImportRow[];
  present: readonly PresentRow[];
  /** Sets that a row adds its contact to. */
  setIdsOf: (row: ImportRow) => readonly string[];
  properties: Properties;
  newId: NewId;
  isDryRun: boolean;
};

/** A contact as it is after the rows so far. */
type Entry = {
  id: string;
  values: ContactValues;
  /** Null for one that is new. */
  version: string | null;
  isUpdated: boolean;
  setIds: Set<string>;
  joinedSetIds: string[];
};

export function identifiersOf(rows: readonly ImportRow[]): Identifiers {
  return forIdentifiers((field) => [
    ...new Set(rows.map(({ values }) => keyOf(values, field)).filter((key) => key !== null)),
  ]);
}

/** As it is compared. */
function keyOf(values: ContactValues, field: ContactIdentifier): string | null {
  return values[contactFields[field].key];
}

function forIdentifiers<Value>(
  toValue: (field: ContactIdentifier) => Value,
): Record<ContactIdentifier, Value> {
  const entries = contactIdentifiers.map((field) => [field, toValue(field)] as const);
  // fromEntries forgets which keys there are.
  return Object.fromEntries(entries) as Record<ContactIdentifier, Value>;
}

export function planBatch(input: PlanInput): Plan {
  const { rows, present } = input;
  const book = createBook(present);
  const counts: PlanCounts = { created: 0, updated: 0, unchanged: 0, bad: 0, keptUnsubscribed: 0 };
  const issues: PlanIssue[] = [];
  let rowsPlanned = 0;
  for (const row of rows) {
    // An identifier is free only once the contact that had it is updated: bulk statements keep no order.
    if (!input.isDryRun && book.needsVacated(row.values)) break;
    rowsPlanned += 1;
    const owner = findOwner(book, row.values);
    if (owner.kind === 'taken') {
      counts.bad += 1;
      issues.push({
        line: row.line,
        field: owner.field,
        reason: `${owner.field} is in use by another contact`,
      });
      continue;
    }
    const { entry } = owner;
    if (entry === null) {
      const created = { id: input.newId(), values: row.values, version: null, isUpdated: false };
      const joinedSetIds = [...new Set(input.setIdsOf(row))];
      book.add({ ...created, setIds: new Set(joinedSetIds), joinedSetIds });
      counts.created += 1;
      continue;
    }
    const given = withoutResubscription(row.input, entry.values);
    if (given !== row.input) counts.keptUnsubscribed += 1;
    const merged = mergeContact(entry.values, given, input.properties);
    // The row was merged into an empty contact before, without an issue.
    if (merged.kind === 'invalid')
      throw new Error(`a checked row became invalid: ${merged.issues.join(', ')}`);
    const isChanged = !areSameValues(entry.values, merged.values);
    if (isChanged) book.update(entry, merged.values);
    const hasJoined = joinSets(entry, input.setIdsOf(row));
    if (isChanged || hasJoined) counts.updated += 1;
    else counts.unchanged += 1;
  }
  return { ...toWrites(book.entries), counts, issues, rowsPlanned };
}

type Book = {
  entries: Iterable<Entry>;
  find: (field: ContactIdentifier, key: string | null) => Entry | null;
  needsVacated: (values: ContactValues) => boolean;
  add: (entry: Entry) => void;
  update: (entry: Entry, values: ContactValues) => void;
};

/** Contacts by their identifiers. */
function createBook(present: readonly PresentRow[]): Book {
  const entries: Entry[] = [];
  const owners = forIdentifiers(() => new Map<string, Entry>());
  const vacated = forIdentifiers(() => new Set<string>());
  const enter = (entry: Entry) => {
    for (const field of contactIdentifiers) {
      const key = keyOf(entry.values, field);
      if (key !== null) owners[field].set(key, entry);
    }
  };
  const add = (entry: Entry) => {
    entries.push(entry);
    enter(entry);
  };
  for (const row of present) {
    const setIds = new Set(row.set_ids);
    add({ id: row.id, values: row, version: row.version, isUpdated: false, setIds, joinedSetIds: [] });
  }
  return {
    entries,
    add,
    find: (field, key) => (key === null ? null : (owners[field].get(key) ?? null)),
    needsVacated: (values) =>
      contactIdentifiers.some((field) => {
        const key = keyOf(values, field);
        return key !== null && vacated[field].has(key);
      }),
    update: (entry, values) => {
      for (const field of contactIdentifiers) {
        const before = keyOf(entry.values, field);
        if (before === null || before === keyOf(values, field)) continue;
        owners[field].delete(before);
        if (entry.version !== null) vacated[field].add(before);
      }
      entry.values = values;
      entry.isUpdated = true;
      enter(entry);
    },
  };
}

type Owner = { kind: 'owner'; entry: Entry | null } | { kind: 'taken'; field: ContactIdentifier };

/** The contact that a row means; null for a new one. */
function findOwner(book: Book, values: ContactValues): Owner {
  let owner: Entry | null = null;
  for (const [rank, field] of contactIdentifiers.entries()) {
    const found = book.find(field, keyOf(values, field));
    if (found === null || found === owner) continue;
    const isOther =
      owner !== null ||
      contactIdentifiers.slice(0, rank).some((earlier) => {
        const given = keyOf(values, earlier);
        const own = keyOf(found.values, earlier);
        return given !== null && own !== null && own !== given;
      });
    if (isOther) return { kind: 'taken', field };
    owner = found;
  }
  return { kind: 'owner', entry: owner };
}

/** No file takes back what people have said, however new it is. The input itself where it does not. */
function withoutResubscription(input: ContactInput, present: ContactValues): ContactInput {
  const { consent } = input;
  if (consent === undefined) return input;
  const kept = present.unsubscribed_channels.filter((channel) => consent[channel] === 'subscribed');
  if (kept.length === 0) return input;
  return {
    ...input,
    consent: Object.fromEntries(
      Object.entries(consent).filter(([channel]) => !kept.some((name) => name === channel)),
    ),
  };
}

function areSameValues(first: ContactValues, second: ContactValues): boolean {
  return (
    contactFieldNames.every((field) => first[field] === second[field]) &&
    first.unsubscribed_channels.length === second.unsubscribed_channels.length &&
    first.unsubscribed_channels.every((channel) => second.unsubscribed_channels.includes(channel)) &&
    areSameProperties(first.properties, second.properties)
  );
}

function areSameProperties(first: ContactValues['properties'], second: ContactValues['properties']): boolean {
  const numbers = Object.keys(first);
  return (
    numbers.length === Object.keys(second).length &&
    numbers.every((number) => first[number] === second[number])
  );
}

function joinSets(entry: Entry, setIds: readonly string[]): boolean {
  let hasJoined = false;
  for (const setId of setIds) {
    if (entry.setIds.has(setId)) continue;
    entry.setIds.add(setId);
    entry.joinedSetIds.push(setId);
    hasJoined = true;
  }
  return hasJoined;
}

function toWrites(
  entries: Iterable<Entry>,
): Pick<Plan, 'inserts' | 'updates' | 'memberships' | 'touched' | 'changedIds'> {
  const inserts: ContactToWrite[] = [];
  const updates: ContactToWrite[] = [];
  const touched: ContactVersion[] = [];
  const memberships: Membership[] = [];
  for (const { id, values, version, isUpdated, joinedSetIds } of entries) {
    for (const setId of joinedSetIds) memberships.push({ setId, contactId: id });
    if (version === null) {
      inserts.push({ id, values });
      continue;
    }
    if (isUpdated) updates.push({ id, values });
    if (isUpdated || joinedSetIds.length > 0) touched.push({ id, version });
  }
  // Locked in this order, so that two transactions cannot deadlock; what is new has come in that of its ids.
  touched.sort(compareIds);
  updates.sort(compareIds);
  memberships.sort(
    (first, second) => compare(first.setId, second.setId) || compare(first.contactId, second.contactId),
  );
  const changedIds = [...inserts, ...touched].map(({ id }) => id);
  return { inserts, updates, memberships, touched, changedIds };
}

function compareIds(first: { id: string }, second: { id: string }): number {
  return compare(first.id, second.id);
}

function compare(first: string, second: string): number {
  return first < second ? -1 : first > second ? 1 : 0;
}
