import type { NewId } from '../../platform/ids.ts';
import { contactFields, type ContactIdentifier, contactIdentifiers } from '../contact-fields.ts';
import { areSameFields, type ContactValues, mergeContact, type Properties } from '../contact-values.ts';
import { findConsentChange } from '../logged-events.ts';
import type { ContactToWrite, ContactVersion, Identifiers, Membership, PresentRow } from './import-store.ts';
import type { ContactInput } from '../schema.ts';

/** What is said of one contact, in a row of a file or by a request. */
export type PlannedRow = {
  input: ContactInput;
  /** What the contact is if there is none yet. */
  values: ContactValues;
};

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
  updates: ContactUpdate[];
  memberships: Membership[];
  /** Contacts that were there, and are updated or get memberships. */
  touched: ContactVersion[];
  /** Contacts that are new, or changed, or belong to more than before. */
  changedIds: string[];
  counts: PlanCounts;
  /** Of the first of the rows; the others need another plan, once this is carried out. */
  outcomes: RowOutcome[];
};

/** `before`: as it is there. */
export type ContactUpdate = ContactToWrite & { before: ContactValues };

export type RowOutcome =
  | { kind: 'created' | 'updated' | 'unchanged'; contactId: string }
  | ({ kind: 'taken' } & TakenIdentifier)
  /** With what the contact has already, it would have too much. Issues begin with the path of their field. */
  | { kind: 'invalid'; issues: readonly string[] };

/**
 * The contact has an identifier of the row, and another contact is meant by one that goes before it: by which `otherId` is
 * found, or which the contact has another of (null).
 */
export type TakenIdentifier = {
  field: ContactIdentifier;
  contactId: string;
  otherField: ContactIdentifier;
  otherId: string | null;
};

export type PlanCounts = {
  created: number;
  updated: number;
  unchanged: number;
  bad: number;
  /** Rows with `subscribed` for a contact that had unsubscribed, and was left unsubscribed. */
  keptUnsubscribed: number;
};

export type PlanInput<Row extends PlannedRow> = {
  rows: readonly Row[];
  present: readonly PresentRow[];
  /** Sets that a row adds its contact to. */
  setIdsOf: (row: Row) => readonly string[];
  properties: Properties;
  newId: NewId;
  isDryRun: boolean;
};

/** A contact as it is after the rows so far. */
type Entry = {
  id: string;
  values: ContactValues;
  /** Null for one that is new, as is `before`. */
  version: string | null;
  before: ContactValues | null;
  isUpdated: boolean;
  setIds: Set<string>;
  joinedSetIds: string[];
};

export function identifiersOf(rows: readonly PlannedRow[]): Identifiers {
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

export function planBatch<Row extends PlannedRow>(input: PlanInput<Row>): Plan {
  const { rows, present } = input;
  const book = createBook(present);
  const counts: PlanCounts = { created: 0, updated: 0, unchanged: 0, bad: 0, keptUnsubscribed: 0 };
  const outcomes: RowOutcome[] = [];
  for (const row of rows) {
    // An identifier is free only once the contact that had it is updated: bulk statements keep no order.
    if (!input.isDryRun && book.needsVacated(row.values)) break;
    const outcome = planRow(input, book, row, counts);
    counts[outcome.kind === 'taken' || outcome.kind === 'invalid' ? 'bad' : outcome.kind] += 1;
    outcomes.push(outcome);
  }
  return { ...toWrites(book.entries), counts, outcomes };
}

function planRow<Row extends PlannedRow>(
  input: PlanInput<Row>,
  book: Book,
  row: Row,
  counts: PlanCounts,
): RowOutcome {
  const owner = findOwner(book, row.values);
  if (owner.kind === 'taken') return owner;
  const { entry } = owner;
  if (entry === null) {
    const created = {
      id: input.newId(),
      values: row.values,
      version: null,
      before: null,
      isUpdated: false,
    };
    const joinedSetIds = [...new Set(input.setIdsOf(row))];
    book.add({ ...created, setIds: new Set(joinedSetIds), joinedSetIds });
    return { kind: 'created', contactId: created.id };
  }
  const given = withoutResubscription(row.input, entry.values);
  const merged = mergeContact(entry.values, given, input.properties);
  if (merged.kind === 'invalid') return merged;
  if (given !== row.input) counts.keptUnsubscribed += 1;
  const isChanged = !areSameValues(entry.values, merged.values);
  if (isChanged) book.update(entry, merged.values);
  const hasJoined = joinSets(entry, input.setIdsOf(row));
  return { kind: isChanged || hasJoined ? 'updated' : 'unchanged', contactId: entry.id };
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
    add({
      id: row.id,
      values: row,
      version: row.version,
      before: row,
      isUpdated: false,
      setIds,
      joinedSetIds: [],
    });
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

type Owner = { kind: 'owner'; entry: Entry | null } | ({ kind: 'taken' } & TakenIdentifier);

/** The contact that a row means; null for a new one. */
function findOwner(book: Book, values: ContactValues): Owner {
  let owner: Entry | null = null;
  let ownerField: ContactIdentifier | null = null;
  for (const [rank, field] of contactIdentifiers.entries()) {
    const found = book.find(field, keyOf(values, field));
    if (found === null || found === owner) continue;
    const taken = { kind: 'taken' as const, field, contactId: found.id };
    if (owner !== null && ownerField !== null) return { ...taken, otherField: ownerField, otherId: owner.id };
    const contradicted = contactIdentifiers.slice(0, rank).find((earlier) => {
      const given = keyOf(values, earlier);
      const own = keyOf(found.values, earlier);
      return given !== null && own !== null && own !== given;
    });
    if (contradicted !== undefined) return { ...taken, otherField: contradicted, otherId: null };
    owner = found;
    ownerField = field;
  }
  return { kind: 'owner', entry: owner };
}

/** Nothing but an explicit act takes back what people have said, however new it is. The input itself where it does not. */
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
    areSameFields(first, second) &&
    findConsentChange(first.unsubscribed_channels, second.unsubscribed_channels) === null
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
  const updates: ContactUpdate[] = [];
  const touched: ContactVersion[] = [];
  const memberships: Membership[] = [];
  for (const { id, values, version, before, isUpdated, joinedSetIds } of entries) {
    for (const setId of joinedSetIds) memberships.push({ setId, contactId: id });
    if (version === null || before === null) {
      inserts.push({ id, values });
      continue;
    }
    if (isUpdated) updates.push({ id, values, before });
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
