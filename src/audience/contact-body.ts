import type { BodyPreparation } from '../platform/http/body-threads.ts';
import { createValidation, type RuleFacts, type Validator } from '../platform/http/validation.ts';
import { audienceRules } from './rules.ts';
import { audienceFormats, type ContactBody, contactUpsert } from './schema.ts';

/** One contact of a bulk, as far as its schema and rules tell. */
export type ReadContact =
  { kind: 'read'; body: ContactBody } | { kind: 'invalid'; issues: readonly string[] };

let validator: Validator | null = null;

/** Reads each by itself. Large requests are read in the thread for large bodies. */
export function readContactBodies(contacts: readonly unknown[], facts: RuleFacts): ReadContact[] {
  const validate = (validator ??= createValidation(audienceFormats, audienceRules).compile(contactUpsert));
  return contacts.map((contact) => {
    const issues = validate(contact, facts);
    return issues.length === 0
      ? { kind: 'read', body: contact as ContactBody } // Its schema has checked it.
      : { kind: 'invalid', issues };
  });
}

/** What the thread that reads large bodies makes of them, by the key of the route. */
export const contactPreparations: Readonly<Record<string, BodyPreparation>> = {
  // The route's schema has checked it.
  'POST /contacts/bulk': (body, facts) =>
    readContactBodies((body as { contacts: unknown[] }).contacts, facts),
};
