import { type TSchema, Type } from 'typebox';
import { readAddress } from '../channels/email/email.ts';
import { badRequest, notFound, PublicError } from '../platform/http/errors.ts';
import { isUuid } from '../platform/ids.ts';
import type { Connection } from '../platform/postgres/database.ts';
import type { ContactIdentifier } from './contact-fields.ts';
import { findByIdentifiers, findContactIds, type IdentifierKeys } from './contact-store.ts';

/** The fields by which a body names one contact: `contact_id` alone, or any of the others. */
export const contactReferenceFields = {
  contact_id: Type.Optional(
    Type.String({
      maxLength: 255,
      description: 'The id of the contact; cannot be combined with the others.',
    }),
  ),
  external_id: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 255,
      format: 'single-line',
      sensitive: true,
      description: 'Matched first.',
    }),
  ),
  email: Type.Optional(
    Type.String({
      format: 'idn-email',
      description: 'Matched second, ignoring case; a name beside it is left out.',
    }),
  ),
  phone_number: Type.Optional(
    Type.String({ format: 'phone-number', description: 'In E.164; matched last.' }),
  ),
} satisfies Record<'contact_id' | ContactIdentifier, TSchema>;

export type ContactReference = { contact_id?: string } & Partial<Record<ContactIdentifier, string>>;

export type ResolvedContact =
  | { kind: 'found'; id: string; by: 'contact_id' | ContactIdentifier }
  /** No identifier was given. */
  | { kind: 'required' }
  /** `contact_id` was given together with another one. */
  | { kind: 'ambiguous' }
  | { kind: 'not_found'; by: 'contact_id' | 'identifiers' };

/** The contact that a reference names: the first that is found by external_id, then email, then phone_number. */
export async function resolveContact(
  connection: Connection,
  organizationId: string,
  reference: ContactReference,
): Promise<ResolvedContact> {
  const [resolved] = await resolveContacts(connection, organizationId, [reference]);
  return resolved ?? { kind: 'required' };
}

/** The same for many, in the order of the references. */
export async function resolveContacts(
  connection: Connection,
  organizationId: string,
  references: readonly ContactReference[],
): Promise<ResolvedContact[]> {
  const read = references.map(readReference);
  const byIdentifiers = read.flatMap((one) => (one.kind === 'by_identifiers' ? [one] : []));
  const [ids, found] = await Promise.all([
    findContactIds(
      connection,
      organizationId,
      read.flatMap((one) => (one.kind === 'by_id' ? [one.id] : [])),
    ),
    findByIdentifiers(
      connection,
      organizationId,
      byIdentifiers.map(({ keys }) => keys),
    ),
  ]);
  const identified = new Map(byIdentifiers.map((one, index) => [one, found.get(index)]));
  return read.map((one): ResolvedContact => {
    switch (one.kind) {
      case 'by_id':
        return {
          ...(ids.has(one.id) ? { kind: 'found', id: one.id } : { kind: 'not_found' }),
          by: 'contact_id',
        };
      case 'by_identifiers': {
        const match = identified.get(one);
        return match === undefined ? { kind: 'not_found', by: 'identifiers' } : { kind: 'found', ...match };
      }
      case 'required':
      case 'ambiguous':
      case 'not_found':
        return one;
    }
  });
}

type ReadReference =
  | { kind: 'by_id'; id: string }
  | { kind: 'by_identifiers'; keys: IdentifierKeys }
  | Exclude<ResolvedContact, { kind: 'found' }>;

/** What a reference is looked for by. */
export function readReference(reference: ContactReference): ReadReference {
  const { contact_id: id, external_id: externalId, email, phone_number: phoneNumber } = reference;
  const hasIdentifier = externalId !== undefined || email !== undefined || phoneNumber !== undefined;
  if (id !== undefined) {
    if (hasIdentifier) return { kind: 'ambiguous' };
    return isUuid(id) ? { kind: 'by_id', id: id.toLowerCase() } : { kind: 'not_found', by: 'contact_id' };
  }
  if (!hasIdentifier) return { kind: 'required' };
  return {
    kind: 'by_identifiers',
    keys: {
      external_id: externalId ?? null,
      email: email === undefined ? null : (readAddress(email)?.normalised ?? null),
      phone_number: phoneNumber ?? null,
    },
  };
}

/** What a request is refused with whose reference names no contact, whichever identifier it gave. */
export function refuseReference({ kind }: Exclude<ResolvedContact, { kind: 'found' }>): PublicError {
  switch (kind) {
    case 'required':
      return new PublicError(
        badRequest,
        'Name the contact: by contact_id, or by external_id, email or phone_number.',
      );
    case 'ambiguous':
      return new PublicError(badRequest, 'Give contact_id alone, without other identifiers of the contact.');
    case 'not_found':
      return new PublicError(notFound, 'There is no such contact.');
  }
}
