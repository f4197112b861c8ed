import type { NewId } from '../../platform/ids.ts';
import { valuesOf } from '../contact-store.ts';
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
  /** Rows that say `subscribed` of somebody who had unsubscribed, and was left so. */
  keptUnsubscribed: number;
};

export type PlanInput = {
  rows: readonly ImportRow[];
  present: readonly PresentRow[];
  /** Sets that a row adds its contact to. */
  setIdsOf: (row: ImportRow) => readonly string[];
  properties: Properties;
  newId: NewId;
  /** Whether `subscribed` counts for those who have unsubscribed. */
  resubscribes: boolean;
  isDryRun: boolean;
};

const identifierFields = ['externalId', 'emailKey', 'phoneNumber'] as const;

type IdentifierField = (typeof identifierFields)[number];

const namesOfIdentifiers: Record<IdentifierField, 'external_id' | 'email' | 'phone_number'> = {
  externalId: 'external_id',
  emailKey: 'email',
  phoneNumber: 'phone_number',
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
  const distinct = (field: IdentifierField) => [
    ...new Set(rows.map(({ values }) => values[field]).filter((value) => value !== null)),
  ];
  return {
    externalIds: distinct('externalId'),
    emailKeys: distinct('emailKey'),
    phoneNumbers: distinct('phoneNumber'),
  };
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
    const given = input.resubscribes ? row.input : withoutResubscription(row.input, entry.values);
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
  find: (field: IdentifierField, value: string | null) => Entry | null;
  needsVacated: (values: ContactValues) => boolean;
  add: (entry: Entry) => void;
  update: (entry: Entry, values: ContactValues) => void;
};

/** Contacts by their identifiers. */
function createBook(present: readonly PresentRow[]): Book {
  const entries: Entry[] = [];
  const owners: Record<IdentifierField, Map<string, Entry>> = {
    externalId: new Map(),
    emailKey: new Map(),
    phoneNumber: new Map(),
  };
  const vacated: Record<IdentifierField, Set<string>> = {
    externalId: new Set(),
    emailKey: new Set(),
    phoneNumber: new Set(),
  };
  const enter = (entry: Entry) => {
    for (const field of identifierFields) {
      const value = entry.values[field];
      if (value !== null) owners[field].set(value, entry);
    }
  };
  const add = (entry: Entry) => {
    entries.push(entry);
    enter(entry);
  };
  for (const row of present) {
    const values = valuesOf(row);
    const setIds = new Set(row.set_ids);
    add({ id: row.id, values, version: row.version, isUpdated: false, setIds, joinedSetIds: [] });
  }
  return {
    entries,
    add,
    find: (field, value) => (value === null ? null : (owners[field].get(value) ?? null)),
    needsVacated: (values) =>
      identifierFields.some((field) => {
        const value = values[field];
        return value !== null && vacated[field].has(value);
      }),
    update: (entry, values) => {
      for (const field of identifierFields) {
        const before = entry.values[field];
        if (before === null || before === values[field]) continue;
        owners[field].delete(before);
        if (entry.version !== null) vacated[field].add(before);
      }
      entry.values = values;
      entry.isUpdated = true;
      enter(entry);
    },
  };
}

type Owner = { kind: 'owner'; entry: Entry | null } | { kind: 'taken'; field: string };

/** The contact that a row means; null for a new one. */
function findOwner(book: Book, values: ContactValues): Owner {
  let owner: Entry | null = null;
  for (const [rank, field] of identifierFields.entries()) {
    const found = book.find(field, values[field]);
    if (found === null || found === owner) continue;
    const isOther =
      owner !== null ||
      identifierFields.slice(0, rank).some((earlier) => {
        const given = values[earlier];
        return given !== null && found.values[earlier] !== null && found.values[earlier] !== given;
      });
    if (isOther) return { kind: 'taken', field: namesOfIdentifiers[field] };
    owner = found;
  }
  return { kind: 'owner', entry: owner };
}

/** An old file must not write again to those who have unsubscribed since. The input itself where it does not. */
function withoutResubscription(input: ContactInput, present: ContactValues): ContactInput {
  const { consent } = input;
  if (consent === undefined) return input;
  const kept = present.unsubscribedChannels.filter((channel) => consent[channel] === 'subscribed');
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
    first.externalId === second.externalId &&
    first.email === second.email &&
    first.phoneNumber === second.phoneNumber &&
    first.firstName === second.firstName &&
    first.lastName === second.lastName &&
    first.locale === second.locale &&
    first.timezone === second.timezone &&
    first.unsubscribedChannels.length === second.unsubscribedChannels.length &&
    first.unsubscribedChannels.every((channel) => second.unsubscribedChannels.includes(channel)) &&
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
