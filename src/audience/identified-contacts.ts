import { parseAddress } from '../channels/email/email.ts';
import type { NewId } from '../platform/ids.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { type ContactIdentifier, contactIdentifiers } from './contact-fields.ts';
import { type IdentifiedContact, insertContactChange, insertIdentifiedContacts } from './contact-store.ts';
import { type ContactReference, readReference, type ResolvedContact, resolveContacts } from './reference.ts';

/** A reference by identifiers, and what it came to when it was resolved a moment ago. */
export type Identified = { reference: ContactReference; contact: ResolvedContact };

/**
 * Makes contacts for references by identifiers of which none was known: with these identifiers, and once for all
 * references that name it. Those to known contacts come along, in their order, since one may name a contact that a
 * reference before it makes by an identifier that counts for more. Returns the ids in the order of the references; where
 * another transaction was quicker, that of its contact.
 */
export async function createIdentifiedContacts(
  transaction: Transaction,
  { newId, at }: { newId: NewId; at: Date },
  organizationId: string,
  identified: readonly Identified[],
): Promise<{ ids: string[]; hasCreated: boolean }> {
  const planned = planContacts(identified, newId);
  const created = await insertIdentifiedContacts(transaction, {
    organizationId,
    contacts: [...new Set(planned.flatMap((plan) => (plan.kind === 'new' ? [plan.contact] : [])))],
    at,
  });
  if (created.size > 0)
    await insertContactChange(transaction, { organizationId, id: newId(), contactIds: [...created] });
  const isTaken = (plan: Planned) => plan.kind === 'new' && !created.has(plan.contact.id);
  // A statement of its own, which sees what the other transaction has committed.
  const taken = await resolveContacts(
    transaction,
    organizationId,
    planned.filter(isTaken).map(({ reference }) => reference),
  );
  const others = taken.values();
  const ids = planned.map((plan) => {
    if (!isTaken(plan)) return plan.contact.id;
    const { value: other } = others.next();
    if (other?.kind !== 'found') throw new Error('a contact that was in the way of a new one is not there');
    return other.id;
  });
  return { ids, hasCreated: created.size > 0 };
}

type Planned = { reference: ContactReference } & (
  { kind: 'new'; contact: IdentifiedContact } | { kind: 'known'; contact: { id: string } }
);

/** One after the other, as if each reference were resolved after the contacts of those before it had been made. */
function planContacts(identified: readonly Identified[], newId: NewId): Planned[] {
  const byIdentifier = new Map<string, IdentifiedContact>();
  return identified.map(({ reference, contact: found }) => {
    const read = readReference(reference);
    if (read.kind !== 'by_identifiers') throw new Error('the reference has no identifiers');
    const { keys } = read;
    const nameBy = (field: ContactIdentifier) => `${field} ${keys[field]}`;
    const given = contactIdentifiers.filter((field) => keys[field] !== null);
    const counting = found.kind === 'found' ? given.filter((field) => isBefore(field, found.by)) : given;
    const planned = counting
      .map((field) => byIdentifier.get(nameBy(field)))
      .find((contact) => contact !== undefined);
    if (planned !== undefined) return { kind: 'new', reference, contact: planned };
    if (found.kind === 'found') return { kind: 'known', reference, contact: found };
    const contact = { id: newId(), email: showEmail(reference), keys };
    for (const field of given) byIdentifier.set(nameBy(field), contact);
    return { kind: 'new', reference, contact };
  });
}

/** As contacts show their address. */
function showEmail({ email }: ContactReference): string | null {
  return email === undefined ? null : (parseAddress(email)?.address ?? null);
}

/** Whether a match by the one counts for more than a match by the other. */
function isBefore(field: ContactIdentifier, by: 'contact_id' | ContactIdentifier): boolean {
  return by !== 'contact_id' && contactIdentifiers.indexOf(field) < contactIdentifiers.indexOf(by);
}
