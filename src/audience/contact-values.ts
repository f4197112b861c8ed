import type { Channel } from '../channels/channel.ts';
import { readAddress } from '../channels/email/email.ts';
import { isLongerThan, toSearchKey } from '../platform/characters.ts';
import { isStorableNumber, showKey, storableNumber } from '../platform/http/json-text.ts';
import {
  type ContactField,
  contactFieldNames,
  contactIdentifiers,
  type ContactKeyColumn,
  mapContactFields,
  missingIdentifier,
} from './contact-fields.ts';
import { parseDateValue } from './date-value.ts';
import type { ContactInput, Property, PropertyType, PropertyValue } from './schema.ts';

/** What a contact says of itself, as it is stored, by the columns of contacts. */
export type ContactValues = Record<ContactField | ContactKeyColumn, string | null> & {
  /** By the number of the property, those of deleted ones among them. */
  properties: Record<string, PropertyValue>;
  unsubscribed_channels: Channel[];
};

export const emptyContact: ContactValues = {
  ...mapContactFields(() => null),
  email_key: null,
  properties: {},
  unsubscribed_channels: [],
};

/** As JSON. A page has a hundred contacts, and an answer has to fit into memory many times. */
const propertiesLengthMax = 32_768;

/** The properties of an organization, by key. */
export type Properties = ReadonlyMap<string, Property>;

export type MergedContact =
  { kind: 'merged'; values: ContactValues } | { kind: 'invalid'; issues: readonly string[] };

/**
 * What becomes of a contact when the input, which its schema let through, is merged into it: a field that is not
 * given stays, null removes it. Issues begin with the path of their field.
 */
export function mergeContact(
  present: ContactValues,
  input: ContactInput,
  properties: Properties,
): MergedContact {
  const issues: string[] = [];
  const values: ContactValues = {
    ...present,
    properties: mergeProperties(present.properties, input.properties ?? {}, properties, issues),
    unsubscribed_channels: mergeConsent(present.unsubscribed_channels, input.consent ?? {}),
  };
  for (const field of contactFieldNames) {
    const given = input[field];
    if (given !== undefined) values[field] = given;
  }
  const email = values.email === null ? null : readAddress(values.email);
  if (email !== null) values.email = email.address;
  values.email_key = email?.normalised ?? null;
  if (isLongerThan(JSON.stringify(values.properties), propertiesLengthMax)) {
    issues.push(`properties must have at most ${propertiesLengthMax} characters in all`);
  }
  if (contactIdentifiers.every((field) => values[field] === null)) {
    issues.push(missingIdentifier);
  }
  return issues.length === 0 ? { kind: 'merged', values } : { kind: 'invalid', issues };
}

function mergeProperties(
  present: ContactValues['properties'],
  input: NonNullable<ContactInput['properties']>,
  properties: Properties,
  issues: string[],
): ContactValues['properties'] {
  const merged = { ...present };
  for (const [key, given] of Object.entries(input)) {
    const property = properties.get(key);
    if (property === undefined) {
      issues.push(`properties.${showKey(key)} is not a defined property`);
      continue;
    }
    if (typeof given === 'number' && !isStorableNumber(given)) {
      issues.push(`properties.${showKey(key)} must be ${storableNumber}`);
      continue;
    }
    const value = given === null ? null : toPropertyValue(property.type, given);
    if (value === undefined) issues.push(`properties.${showKey(key)} must be ${typeNames[property.type]}`);
    else if (value === null) Reflect.deleteProperty(merged, property.number);
    else merged[property.number] = value;
  }
  return merged;
}

const typeNames: Record<PropertyType, string> = {
  string: 'a string that is not empty',
  number: 'a number',
  boolean: 'true or false',
  date: 'a date such as 2026-11-21, or a time with an offset or Z',
};

/** As it is stored; undefined for a value of another type. */
function toPropertyValue(type: PropertyType, given: PropertyValue): PropertyValue | undefined {
  switch (type) {
    case 'string':
      return typeof given === 'string' && given !== '' ? given : undefined;
    case 'number':
      return typeof given === 'number' ? given : undefined;
    case 'boolean':
      return typeof given === 'boolean' ? given : undefined;
    case 'date':
      return typeof given === 'string' ? (parseDateValue(given) ?? undefined) : undefined;
  }
}

function mergeConsent(present: readonly Channel[], given: NonNullable<ContactInput['consent']>): Channel[] {
  const unsubscribed = new Set(present);
  for (const [channel, state] of Object.entries(given) as [Channel, string][]) {
    if (state === 'unsubscribed') unsubscribed.add(channel);
    else unsubscribed.delete(channel);
  }
  return [...unsubscribed].sort();
}

/** Whether all is the same but the consents. */
export function areSameFields(first: ContactValues, second: ContactValues): boolean {
  return (
    contactFieldNames.every((field) => first[field] === second[field]) &&
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

/** The columns of text besides the keys of addresses, and what is written into each. */
export const textColumns: readonly { column: string; textOf: (values: ContactValues) => string | null }[] = [
  ...contactFieldNames.map((field) => ({ column: field, textOf: (values: ContactValues) => values[field] })),
  { column: 'name_key', textOf: toNameKey },
  { column: 'last_name_key', textOf: toLastNameKey },
];

/** In lower case, by which contacts are searched: both names together, and the last one alone. */
function toNameKey(values: ContactValues): string | null {
  const name = [values.first_name, values.last_name].filter((part) => part !== null).join(' ');
  return name === '' ? null : toSearchKey(name);
}

function toLastNameKey({ last_name: lastName }: ContactValues): string | null {
  return lastName === null ? null : toSearchKey(lastName);
}
