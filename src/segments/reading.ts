import { isLongerThan } from '../platform/characters.ts';
import { isUuid } from '../platform/ids.ts';
import { isStorableText, showKey } from '../platform/http/json-text.ts';
import type { Schema } from '../platform/http/openapi.ts';
import { didYouMean } from '../platform/suggestion.ts';
import { parseDateValue } from '../audience/audience.ts';
import type { FieldType } from '../events/events.ts';
import type { PropertyType, SetKind } from '../audience/audience.ts';
import type { CampaignMessage } from '../messages/messages.ts';

/** A property as conditions speak of it: values stand under its number. */
export type ConditionProperty = { id: string; number: number; type: PropertyType };

/** An event as conditions speak of it: with the types of the fields that it declares, by their names. */
export type ConditionEvent = { id: string; number: number; fields: ReadonlyMap<string, FieldType> };

/** What the words of conditions stand for in one organization. */
export type Lookups = {
  findProperty: (key: string) => ConditionProperty | undefined;
  /** By the id in lower case. */
  findSetKind: (id: string) => SetKind | undefined;
  /** By the id of the campaign in lower case. */
  findCampaignMessage: (id: string) => CampaignMessage | undefined;
  findEvent: (name: string) => ConditionEvent | undefined;
  /** Older events are deleted, and do not count; null: all are kept. */
  eventsKeptMs: number | null;
  /** Nothing is found then, and nothing is said of what is not. */
  isFormOnly?: boolean;
};

/** One reading of an input: what it may refer to, and what was wrong with it so far. */
export type Reading = Lookups & { issues: string[] };

/** A value of the input, and where it stands. */
export type Place = { value: unknown; path: string };

/** An object of the input whose members are read one by one. */
export type Members = { fields: Readonly<Record<string, unknown>>; path: string };

/** More issues than this do not help, and the list is sent back to the client. */
const issuesMax = 50;

/** Longer than anything that a contact holds, so that nothing that could match is refused. */
const textLengthMax = 1_000;

/** Notes what is wrong. Every function here that returns null has noted it. */
export function addIssue(reading: Reading, issue: string): null {
  if (reading.issues.length < issuesMax) reading.issues.push(issue);
  return null;
}

/** Notes that the organization has no such thing. */
export function addUnknown(reading: Reading, issue: string): null {
  return reading.isFormOnly === true ? null : addIssue(reading, issue);
}

export function readMembers(reading: Reading, { value, path }: Place): Members | null {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    return addIssue(reading, `${path} must be an object`);
  }
  return { fields: value as Members['fields'], path };
}

/** A member that has to be there. */
export function takeMember(reading: Reading, members: Members, name: string): Place | null {
  return findMember(members, name) ?? addIssue(reading, `${members.path}.${name} is required`);
}

/** A member that may be left out. */
export function findMember(members: Members, name: string): Place | null {
  if (!Object.hasOwn(members.fields, name)) return null;
  return { value: members.fields[name], path: `${members.path}.${name}` };
}

/** A mistyped field name must not silently select other contacts. */
export function refuseOtherMembers(reading: Reading, members: Members, names: readonly string[]): void {
  for (const name of Object.keys(members.fields)) {
    if (names.includes(name)) continue;
    if (reading.issues.length >= issuesMax) return;
    const hint = didYouMean(name, names);
    addIssue(reading, `${members.path}.${showKey(name)} is not a known field${hint}`);
  }
}

/** What `readText` takes. */
export const textSchema: Schema = { type: 'string', minLength: 1, maxLength: textLengthMax };

export function readText(reading: Reading, { value, path }: Place): string | null {
  if (typeof value !== 'string') return addIssue(reading, `${path} must be a string`);
  if (value === '') return addIssue(reading, `${path} must not be empty`);
  if (isLongerThan(value, textLengthMax)) {
    return addIssue(reading, `${path} must be at most ${textLengthMax} characters`);
  }
  if (!isStorableText(value)) {
    return addIssue(reading, `${path} must not contain NUL or unpaired surrogates`);
  }
  return value;
}

export function readOneOf<Value extends string>(
  reading: Reading,
  { value, path }: Place,
  allowed: readonly Value[],
): Value | null {
  const found = allowed.find((candidate) => candidate === value);
  return found ?? addIssue(reading, `${path} must be one of ${allowed.join(', ')}`);
}

/** What `readNumber` takes. */
export const numberSchema: Schema = { type: 'number' };

export function readNumber(reading: Reading, { value, path }: Place): number | null {
  if (typeof value !== 'number' || !Number.isFinite(value)) {
    return addIssue(reading, `${path} must be a number`);
  }
  return value;
}

/** What `readDate` takes. */
export const dateSchema: Schema = {
  title: 'DateValue',
  anyOf: [
    { type: 'string', format: 'date' },
    { type: 'string', format: 'date-time' },
  ],
  description: 'A date such as `2026-11-21`, which means midnight UTC, or a time with an offset or Z.',
};

/** A value of a date property, as date-value.ts writes it. */
export function readDate(reading: Reading, { value, path }: Place): string | null {
  if (typeof value !== 'string') return addIssue(reading, `${path} must be a string`);
  return (
    parseDateValue(value) ??
    addIssue(reading, `${path} must be a date such as 2026-11-21, or a time with an offset or Z`)
  );
}

/** What `readUuid` takes. */
export const uuidSchema: Schema = { type: 'string', format: 'uuid' };

/** In lower case. */
export function readUuid(reading: Reading, { value, path }: Place): string | null {
  if (typeof value !== 'string' || !isUuid(value)) return addIssue(reading, `${path} must be a UUID`);
  return value.toLowerCase();
}

/** What `readItems` takes. */
export function itemsSchema(items: Schema, itemsMax: number): Schema {
  return { type: 'array', items, minItems: 1, maxItems: itemsMax };
}

/** Reads every item, so that all errors are listed at once. */
export function readItems<Item>(
  reading: Reading,
  { value, path }: Place,
  itemsMax: number,
  readItem: (reading: Reading, item: Place) => Item | null,
): Item[] | null {
  if (!Array.isArray(value)) return addIssue(reading, `${path} must be an array`);
  if (value.length === 0) return addIssue(reading, `${path} must have at least 1 item`);
  if (value.length > itemsMax) return addIssue(reading, `${path} must have at most ${itemsMax} items`);
  const items = value.map((item: unknown, index) =>
    readItem(reading, { value: item, path: `${path}[${index}]` }),
  );
  const read = items.filter((item) => item !== null);
  return read.length === items.length ? read : null;
}

/** What `readRange` takes; that it does not end before it begins is beyond a schema. */
export function rangeSchema(bound: Schema): Schema {
  return {
    type: 'array',
    prefixItems: [bound, bound],
    items: false,
    minItems: 2,
    maxItems: 2,
    description: 'From and to, both inclusive.',
  };
}

/** `[from, to]`, both inclusive. */
export function readRange<Bound>(
  reading: Reading,
  place: Place,
  readBound: (reading: Reading, bound: Place) => Bound | null,
  isOrdered: (from: Bound, to: Bound) => boolean,
): { from: Bound; to: Bound } | null {
  if (!Array.isArray(place.value) || place.value.length !== 2) {
    return addIssue(reading, `${place.path} must be an array of two: from and to`);
  }
  const [from, to] = readItems(reading, place, 2, readBound) ?? [];
  if (from === undefined || to === undefined) return null;
  return isOrdered(from, to)
    ? { from, to }
    : addIssue(reading, `${place.path} must not end before it begins`);
}

const unitsMs = { minute: 60_000, hour: 3_600_000, day: 86_400_000, week: 604_800_000 } as const;

const units = Object.keys(unitsMs) as (keyof typeof unitsMs)[];

/** No data is older, and PostgreSQL can still represent a time that far back. */
const periodDaysMax = 3_650;

/** What `readPeriodMs` takes; that it is at most ten years is beyond a schema. */
export const periodSchema: Schema = {
  title: 'Period',
  type: 'object',
  required: ['value', 'unit'],
  properties: { value: { type: 'integer', minimum: 1 }, unit: { type: 'string', enum: units } },
  additionalProperties: false,
  description: `A length of time, at most ten years (${periodDaysMax} days).`,
};

/** `{ value, unit }`: a length of time in milliseconds, at most ten years. */
export function readPeriodMs(reading: Reading, place: Place): number | null {
  const members = readMembers(reading, place);
  if (members === null) return null;
  refuseOtherMembers(reading, members, ['value', 'unit']);
  const [value, unit] = [takeMember(reading, members, 'value'), takeMember(reading, members, 'unit')];
  const count = value === null ? null : readInteger(reading, value, { min: 1, max: Infinity });
  const unitName = unit === null ? null : readOneOf(reading, unit, units);
  if (count === null || unitName === null) return null;
  const periodMs = count * unitsMs[unitName];
  return periodMs <= periodDaysMax * unitsMs.day
    ? periodMs
    : addIssue(reading, `${place.path} must be at most ten years (${periodDaysMax} days)`);
}

export function readInteger(
  reading: Reading,
  { value, path }: Place,
  { min, max }: { min: number; max: number },
): number | null {
  if (typeof value !== 'number' || !Number.isInteger(value)) {
    return addIssue(reading, `${path} must be an integer`);
  }
  if (value < min) return addIssue(reading, `${path} must be at least ${min}`);
  return value <= max ? value : addIssue(reading, `${path} must be at most ${max}`);
}
