import type { NewId } from '../platform/ids.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { contactIdentifiers } from './contact-fields.ts';
import { type IdentifiedContact, insertContactChange, insertIdentifiedContacts } from './contact-store.ts';
import { type ContactReference, readReference, resolveContacts } from './reference.ts';

/**
 * Makes contacts for references by identifiers none of which was known a moment ago: with these identifiers, and once
 * for all references that name it. Returns their ids in the order of the references; where another transaction was
 * quicker, that of its contact.
 */
export async function createIdentifiedContacts(
  transaction: Transaction,
  { newId, at }: { newId: NewId; at: Date },
  organizationId: string,
  references: readonly ContactReference[],
): Promise<{ ids: string[]; hasCreated: boolean }> {
  const planned = planContacts(references, newId);
  const created = await insertIdentifiedContacts(transaction, {
    organizationId,
    contacts: [...new Set(planned)],
    at,
  });
  if (created.size > 0)
    await insertContactChange(transaction, { organizationId, id: newId(), contactIds: [...created] });
  const isTaken = (index: number) => !created.has(planned[index]?.id ?? '');
  // A statement of its own, which sees what the other transaction has committed.
  const taken = await resolveContacts(
    transaction,
    organizationId,
    references.filter((_reference, index) => isTaken(index)),
  );
  const others = taken.values();
  const ids = planned.map(({ id }, index) => {
    if (!isTaken(index)) return id;
    const { value: other } = others.next();
    if (other?.kind !== 'found') throw new Error('a contact that was in the way of a new one is not there');
    return other.id;
  });
  return { ids, hasCreated: created.size > 0 };
}

/** One after the other, as if each reference were resolved after the contacts of those before it had been made. */
function planContacts(references: readonly ContactReference[], newId: NewId): IdentifiedContact[] {
  const byIdentifier = new Map<string, IdentifiedContact>();
  return references.map((reference) => {
    const read = readReference(reference);
    if (read.kind !== 'by_identifiers') throw new Error('the reference has no identifiers');
    const { keys } = read;
    const names = contactIdentifiers.flatMap((field) =>
      keys[field] === null ? [] : [`${field} ${keys[field]}`],
    );
    const known = names.map((name) => byIdentifier.get(name)).find((contact) => contact !== undefined);
    if (known !== undefined) return known;
    const contact = { id: newId(), email: reference.email ?? null, keys };
    for (const name of names) byIdentifier.set(name, contact);
    return contact;
  });
}
