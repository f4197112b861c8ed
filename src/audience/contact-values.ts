import type { Channel } from '../channels/channel.ts';
import { parseAddress } from '../channels/email/email.ts';
import { isLongerThan } from '../platform/characters.ts';
import { showKey } from '../platform/http/json-text.ts';
import { parseDateValue } from './date-value.ts';
import type { ContactInput, Property, PropertyType, PropertyValue } from './schema.ts';

/** What a contact says of itself, as it is stored. */
export type ContactValues = {
  externalId: string | null;
  email: string | null;
  /** As addresses are compared: lower-case, domain as A-labels. */
  emailKey: string | null;
  phoneNumber: string | null;
  firstName: string | null;
  lastName: string | null;
  locale: string | null;
  timezone: string | null;
  /** By the number of the property. */
  properties: Record<string, PropertyValue>;
  unsubscribedChannels: Channel[];
};

export const emptyContact: ContactValues = {
  externalId: null,
  email: null,
  emailKey: null,
  phoneNumber: null,
  firstName: null,
  lastName: null,
  locale: null,
  timezone: null,
  properties: {},
  unsubscribedChannels: [],
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
  const kept = <Value>(given: Value | null | undefined, value: Value | null) =>
    given === undefined ? value : given;
  const email = kept(input.email, present.email);
  const values: ContactValues = {
    externalId: kept(input.external_id, present.externalId),
    email,
    emailKey: email === null ? null : (parseAddress(email)?.normalised ?? null),
    phoneNumber: kept(input.phone_number, present.phoneNumber),
    firstName: kept(input.first_name, present.firstName),
    lastName: kept(input.last_name, present.lastName),
    locale: kept(input.locale, present.locale),
    timezone: kept(input.timezone, present.timezone),
    properties: mergeProperties(present.properties, input.properties ?? {}, properties, issues),
    unsubscribedChannels: mergeConsent(present.unsubscribedChannels, input.consent ?? {}),
  };
  if (isLongerThan(JSON.stringify(values.properties), propertiesLengthMax)) {
    issues.push(`properties must have at most ${propertiesLengthMax} characters in all`);
  }
  if (values.externalId === null && values.email === null && values.phoneNumber === null) {
    issues.push('one of external_id, email and phone_number is required');
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
      return typeof given === 'number' && Number.isFinite(given) ? given : undefined;
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

/** In lower case, by which contacts are searched: both names together, and the last one alone. */
export function searchKeysOf(values: Pick<ContactValues, 'firstName' | 'lastName'>): {
  nameKey: string | null;
  lastNameKey: string | null;
} {
  const name = [values.firstName, values.lastName].filter((part) => part !== null).join(' ');
  return {
    nameKey: name === '' ? null : toSearchKey(name),
    lastNameKey: values.lastName === null ? null : toSearchKey(values.lastName),
  };
}

export function toSearchKey(text: string): string {
  return text.toLowerCase();
}
