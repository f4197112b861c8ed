import { type TSchema, Type } from 'typebox';
import { parseAddress } from '../channels/email/email.ts';
import { isUuid } from '../platform/ids.ts';
import type { Connection } from '../platform/postgres/database.ts';
import type { ContactIdentifier } from './contact-fields.ts';
import { findByIdentifiers, findContact } from './contact-store.ts';

/** The fields by which a body names one contact: `contact_id` alone, or any of the others. */
export const contactReferenceFields = {
  contact_id: Type.Optional(
    Type.String({
      maxLength: 255,
      description: 'The id of the contact; cannot be combined with the others.',
    }),
  ),
  external_id: Type.Optional(
    Type.String({ minLength: 1, maxLength: 255, format: 'single-line', description: 'Matched first.' }),
  ),
  email: Type.Optional(Type.String({ format: 'email', description: 'Matched second, ignoring case.' })),
  phone_number: Type.Optional(
    Type.String({ format: 'phone-number', description: 'In E.164; matched last.' }),
  ),
} satisfies Record<'contact_id' | ContactIdentifier, TSchema>;

export type ContactReference = { contact_id?: string } & Partial<Record<ContactIdentifier, string>>;

export type ResolvedContact =
  | { kind: 'found'; id: string }
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
  const { contact_id: id, external_id: externalId, email, phone_number: phoneNumber } = reference;
  const hasIdentifier = externalId !== undefined || email !== undefined || phoneNumber !== undefined;
  if (id !== undefined) {
    if (hasIdentifier) return { kind: 'ambiguous' };
    const row = isUuid(id) ? await findContact(connection, { organizationId, id }) : null;
    return row === null ? { kind: 'not_found', by: 'contact_id' } : { kind: 'found', id: row.id };
  }
  if (!hasIdentifier) return { kind: 'required' };
  const found = await findByIdentifiers(connection, organizationId, {
    external_id: externalId ?? null,
    email: email === undefined ? null : (parseAddress(email)?.normalised ?? null),
    phone_number: phoneNumber ?? null,
  });
  return found === null ? { kind: 'not_found', by: 'identifiers' } : { kind: 'found', id: found };
}
