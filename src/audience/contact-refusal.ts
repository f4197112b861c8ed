import { conflict, PublicError, validationError } from '../platform/http/errors.ts';
import type { ContactIdentifier } from './contact-fields.ts';
import type { TakenIdentifier } from './files/import-plan.ts';

/** Why what a request says of a contact is not written. */
export type ContactRefusal =
  { kind: 'invalid'; issues: readonly string[] } | ({ kind: 'taken' } & TakenIdentifier);

/** What the request is refused with. Of contacts it names fields and ids alone. */
export function refuseContact(refusal: ContactRefusal): PublicError {
  if (refusal.kind === 'invalid') return new PublicError(validationError, refusal.issues.join(', '));
  const { field, contactId, otherField, otherId } = refusal;
  return otherId === null
    ? new PublicError(
        conflict,
        `${field} is in use by the contact ${contactId}, which has another ${otherField} than the one given.`,
      )
    : new PublicError(
        conflict,
        `${otherField} is of the contact ${otherId}, and ${field} is in use by the contact ${contactId}.`,
      );
}

/** The same of an identifier alone; null if its contact was deleted a moment ago. */
export function refuseTaken({
  field,
  contactId,
}: {
  field: ContactIdentifier;
  contactId: string | null;
}): PublicError {
  const owner = contactId === null ? 'another contact' : `the contact ${contactId}`;
  return new PublicError(conflict, `${field} is in use by ${owner}.`);
}
