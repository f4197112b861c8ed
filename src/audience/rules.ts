import { defineRule, type FieldRule } from '../platform/http/validation.ts';
import { contactIdentifiers, missingIdentifier } from './contact-fields.ts';
import { suppressionRules } from './suppression-body.ts';
import { contactRecord, type ContactBody, type PropertyBody } from './schema.ts';

/** Rules that this room's schemas name, to be handed to `createValidation`. */
export const audienceRules: Record<
  'contact-identifiers' | 'property-key' | 'suppression' | 'suppression-check',
  FieldRule
> = {
  ...suppressionRules,
  // The route says with it what is wrong with properties, which only the account can tell.
  'contact-identifiers': defineRule<ContactBody>(
    (_fields, isGiven) => (contactIdentifiers.some(isGiven) ? [] : [missingIdentifier]),
    { isLeftToRoute: true },
  ),
  // A placeholder and a column of a file could mean either, and would mean the field.
  'property-key': defineRule<PropertyBody>(({ key }) =>
    key !== undefined && Object.hasOwn(contactRecord.properties, key)
      ? [`key must not be the name of a field of contacts, as ${key} is`]
      : [],
  ),
};
