import type { Channel } from '../channels/channel.ts';
import { readAddress } from '../channels/email/email.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { lockIdentifiers, type OptOutTools, settleConsents, shareIdentifiers } from './consents.ts';
import { contactFields, type ContactIdentifier, contactIdentifiers } from './contact-fields.ts';
import * as store from './contact-store.ts';
import { listConsentChange, logContacts } from './logged-events.ts';
import { type ContactReference, readReference, type ResolvedContact, resolveContacts } from './reference.ts';

/**
 * Which contact is meant by identifiers that somebody gives of a person, where they may also say something new: an event
 * that names an external id and an email address says that both are one person's.
 *
 * - It is the contact that has the first of them that anybody has, in the order of `contactIdentifiers`.
 * - If nobody has any of them, a contact is made that has them all.
 * - Identifiers that nobody has fill fields of the contact that are empty. One that another contact has changes nothing,
 *   and neither does one for which the contact has another value: both may be right, and neither is ours to decide.
 *
 * References are taken one after the other, each as if what those before it wrote had been there.
 */

/** A reference by identifiers, and what it came to when it was resolved a moment ago. */
export type Identified = { reference: ContactReference; contact: ResolvedContact };

/** Who is meant: an id for each reference, in their order. */
export type Identification = {
  ids: string[];
  /** Whether a contact was made or filled, of which segments hear after the commit. */
  hasChanged: boolean;
};

/**
 * Identifies contacts within the transaction that writes what they did. Nothing is locked and nothing is written where all
 * references name contacts that lack none of the identifiers.
 */
export async function identifyContacts(
  transaction: Transaction,
  tools: OptOutTools & { at: Date },
  organizationId: string,
  identified: readonly Identified[],
): Promise<Identification> {
  const wanted = identified.map(({ reference }) => readWanted(reference));
  const isAllFound = identified.every(({ contact }) => contact.kind === 'found');
  const mayFill = await store.hasGap(
    transaction,
    organizationId,
    identified.flatMap(({ contact }, index) => {
      const keys = wanted[index]?.keys;
      const isTelling = keys !== undefined && givenOf(keys).length > 1;
      return contact.kind === 'found' && isTelling ? [{ id: contact.id, keys }] : [];
    }),
  );
  if (isAllFound && !mayFill)
    return {
      ids: identified.flatMap(({ contact }) => (contact.kind === 'found' ? [contact.id] : [])),
      hasChanged: false,
    };
  // A field is filled only with what nobody has. Of new contacts, the unique indexes say so.
  if (mayFill) await lockIdentifiers(transaction, organizationId);
  else await shareIdentifiers(transaction, organizationId);
  const owners = await store.findOwners(
    transaction,
    organizationId,
    wanted.map(({ keys }) => keys),
  );
  const persons = planPersons(wanted, owners, { newId: tools.newId, mayFill });
  return writePersons(transaction, tools, organizationId, { identified, persons });
}

type Wanted = { keys: store.IdentifierKeys; email: string | null };

function readWanted(reference: ContactReference): Wanted {
  const read = readReference(reference);
  if (read.kind !== 'by_identifiers') throw new Error('the reference has no identifiers');
  return { keys: read.keys, email: showEmail(reference) };
}

function givenOf(keys: store.IdentifierKeys): ContactIdentifier[] {
  return contactIdentifiers.filter((field) => keys[field] !== null);
}

/** As contacts show their address. */
function showEmail({ email }: ContactReference): string | null {
  return email === undefined ? null : (readAddress(email)?.address ?? null);
}

/** A contact as it is after the references so far. */
type Person = {
  id: string;
  isNew: boolean;
  isFilled: boolean;
  email: string | null;
  keys: Record<ContactIdentifier, string | null>;
};

/** Whom each reference means. */
function planPersons(
  wanted: readonly Wanted[],
  owners: readonly store.ContactRow[],
  { newId, mayFill }: { newId: () => string; mayFill: boolean },
): Person[] {
  const byIdentifier = new Map<string, Person>();
  const nameOf = (field: ContactIdentifier, key: string | null) => `${field} ${key}`;
  const enter = (person: Person) => {
    for (const field of givenOf(person.keys)) byIdentifier.set(nameOf(field, person.keys[field]), person);
  };
  for (const row of owners) {
    const keys = mapIdentifiers((field) => row[contactFields[field].key]);
    enter({ id: row.id, isNew: false, isFilled: false, email: row.email, keys });
  }
  return wanted.map(({ keys, email }) => {
    const given = givenOf(keys);
    const found = given
      .map((field) => byIdentifier.get(nameOf(field, keys[field])))
      .find((person) => person !== undefined);
    const person = found ?? {
      id: newId(),
      isNew: true,
      isFilled: false,
      email: null,
      keys: mapIdentifiers(() => null),
    };
    if (!person.isNew && !mayFill) return person;
    for (const field of given) {
      if (person.keys[field] !== null || byIdentifier.has(nameOf(field, keys[field]))) continue;
      person.keys[field] = keys[field];
      if (field === 'email') person.email = email;
      person.isFilled = true;
    }
    enter(person);
    return person;
  });
}

function mapIdentifiers(
  toKey: (field: ContactIdentifier) => string | null,
): Record<ContactIdentifier, string | null> {
  const entries = contactIdentifiers.map((field) => [field, toKey(field)] as const);
  // fromEntries forgets which keys there are.
  return Object.fromEntries(entries) as Record<ContactIdentifier, string | null>;
}

async function writePersons(
  transaction: Transaction,
  tools: OptOutTools & { at: Date },
  organizationId: string,
  { identified, persons }: { identified: readonly Identified[]; persons: readonly Person[] },
): Promise<Identification> {
  const { newId, at } = tools;
  const written = [...new Set(persons.filter(({ isFilled }) => isFilled))];
  const filledIds = written.flatMap(({ id, isNew }) => (isNew ? [] : [id]));
  // Locked, so that nothing is said of their consent meanwhile.
  const present = new Map(
    (await store.lockConsents(transaction, organizationId, filledIds)).map((row) => [row.id, row]),
  );
  const contacts = await toContacts(
    transaction,
    tools,
    organizationId,
    // One that was deleted meanwhile has nothing to be filled.
    written.filter(({ id, isNew }) => isNew || present.has(id)),
    (id) => present.get(id)?.unsubscribed_channels ?? [],
  );
  const isNew = (contact: store.IdentifiedContact) => !present.has(contact.id);
  const created = await store.insertIdentifiedContacts(transaction, {
    organizationId,
    contacts: contacts.filter(isNew),
    at,
  });
  const filled = contacts.filter((contact) => !isNew(contact));
  if (filled.length > 0) await store.fillContacts(transaction, { organizationId, contacts: filled, at });
  const filledNow = filled.map(({ id }) => id);
  const changedIds = [...created, ...filledNow];
  if (changedIds.length > 0) {
    await Promise.all([
      store.insertContactChange(transaction, { organizationId, id: newId(), contactIds: changedIds }),
      logContacts(transaction, {
        organizationId,
        at,
        created: [...created],
        updated: filledNow,
        consents: filled.flatMap(({ id, unsubscribedChannels }) =>
          listConsentChange(id, present.get(id)?.unsubscribed_channels ?? [], unsubscribedChannels),
        ),
      }),
    ]);
  }
  return {
    ids: await listIds(transaction, organizationId, { identified, persons, created }),
    hasChanged: changedIds.length > 0,
  };
}

/** With what holds of their consents. */
async function toContacts(
  transaction: Transaction,
  tools: OptOutTools,
  organizationId: string,
  persons: readonly Person[],
  unsubscribedBefore: (id: string) => readonly Channel[],
): Promise<store.IdentifiedContact[]> {
  const settled = await settleConsents(
    transaction,
    tools,
    organizationId,
    persons.map(({ id, keys }) => ({
      external_id: keys.external_id,
      email_key: keys.email,
      phone_number: keys.phone_number,
      unsubscribed_channels: unsubscribedBefore(id),
    })),
  );
  return persons.map(({ id, email, keys }, index) => ({
    id,
    email,
    keys,
    unsubscribedChannels: settled[index] ?? [],
  }));
}

/** Where another transaction was quicker to make a contact, it is that of its. */
async function listIds(
  transaction: Transaction,
  organizationId: string,
  known: { identified: readonly Identified[]; persons: readonly Person[]; created: ReadonlySet<string> },
): Promise<string[]> {
  const { identified, persons, created } = known;
  const isTaken = ({ id, isNew }: Person) => isNew && !created.has(id);
  // A statement of its own, which sees what the other transaction has committed.
  const taken = await resolveContacts(
    transaction,
    organizationId,
    identified.flatMap(({ reference }, index) => {
      const person = persons[index];
      return person !== undefined && isTaken(person) ? [reference] : [];
    }),
  );
  const others = taken.values();
  return persons.map((person) => {
    if (!isTaken(person)) return person.id;
    const { value: other } = others.next();
    if (other?.kind !== 'found') throw new Error('a contact that was in the way of a new one is not there');
    return other.id;
  });
}
