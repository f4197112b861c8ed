import type { SetKind } from '../audience/audience.ts';
import type { CampaignMessage } from '../messages/messages.ts';
import type { AskedEvent, Leaf, Reference } from './leaf.ts';
import { leafTypes } from './nodes/registry.ts';
import {
  addIssue,
  type ConditionEvent,
  type ConditionProperty,
  type Lookups,
  type Members,
  type Place,
  type Reading,
  readMembers,
  readOneOf,
  refuseOtherMembers,
  takeMember,
} from './reading.ts';

export type { AskedEvent, Leaf, Reference } from './leaf.ts';
export type { ConditionEvent, ConditionProperty } from './reading.ts';

/**
 * The conditions of a segment: a tree of groups, each leaf of which tests one thing about a contact. They are parsed
 * once at the edge; every `Condition` has been checked and can be compiled (compile.ts).
 */
export type Condition = Group | ({ kind: 'leaf' } & Leaf);

export type Group = {
  kind: 'group';
  match: (typeof matches)[number];
  conditions: readonly Condition[];
};

/** How many of a group's conditions have to hold. */
export const matches = ['all', 'any', 'none'] as const;

/** A lone leaf is one level deep. What people write has two or three. */
export const levelsMax = 5;

/** Each leaf costs a look at every contact. */
export const leavesMax = 100;

/** What the input may refer to in one organization. */
export type ConditionContext = {
  /** By key. */
  properties: ReadonlyMap<string, ConditionProperty>;
  /** By id. */
  sets: ReadonlyMap<string, SetKind>;
  /** By the id of the campaign. */
  campaignMessages: ReadonlyMap<string, CampaignMessage>;
  /** By name. */
  events: ReadonlyMap<string, ConditionEvent>;
  /** For how long events are kept; null for ever. */
  eventsKeptMs: number | null;
};

export type ConditionReading = { ok: true; condition: Condition } | { ok: false; issues: string[] };

/** Checks an input of any kind. Each of the issues begins with the path of its field; there are at most 50. */
export function parseConditions(input: unknown, context: ConditionContext): ConditionReading {
  const { condition, issues } = readTree(input, {
    findProperty: (key) => context.properties.get(key),
    findSetKind: (id) => context.sets.get(id),
    findCampaignMessage: (id) => context.campaignMessages.get(id),
    findEvent: (name) => context.events.get(name),
    eventsKeptMs: context.eventsKeptMs,
  });
  return condition === null || issues.length > 0 ? { ok: false, issues } : { ok: true, condition };
}

/** The issues of an input of any kind that no account is needed to tell. */
export function findFormIssues(input: unknown): string[] {
  const findNothing = () => undefined;
  return readTree(input, {
    findProperty: findNothing,
    findSetKind: findNothing,
    findCampaignMessage: findNothing,
    findEvent: findNothing,
    eventsKeptMs: null,
    isFormOnly: true,
  }).issues;
}

/**
 * What `parseConditions` will ask its context for: keys of properties, ids of sets and campaigns in lower case, and names
 * of events.
 */
export type MentionedNames = {
  propertyKeys: string[];
  setIds: string[];
  campaignIds: string[];
  eventNames: string[];
};

/** Takes an input of any kind, well-formed or not; what is returned is bounded as conditions are. */
export function collectMentionedNames(input: unknown): MentionedNames {
  const [propertyKeys, setIds] = [new Set<string>(), new Set<string>()];
  const [campaignIds, eventNames] = [new Set<string>(), new Set<string>()];
  readTree(input, {
    findProperty: (key) => {
      propertyKeys.add(key);
      return undefined;
    },
    findSetKind: (id) => {
      setIds.add(id);
      return undefined;
    },
    findCampaignMessage: (id) => {
      campaignIds.add(id);
      return undefined;
    },
    findEvent: (name) => {
      eventNames.add(name);
      return undefined;
    },
    eventsKeptMs: null,
  });
  return {
    propertyKeys: [...propertyKeys],
    setIds: [...setIds],
    campaignIds: [...campaignIds],
    eventNames: [...eventNames],
  };
}

/** All leaves of the tree, from its beginning to its end. */
export function listLeaves(condition: Condition): Leaf[] {
  return condition.kind === 'leaf' ? [condition] : condition.conditions.flatMap(listLeaves);
}

/** Everything that the conditions refer to, each once. It must not be deleted while they exist. */
export function referencesOf(condition: Condition): Reference[] {
  const references = listLeaves(condition).flatMap((leaf) => leaf.references);
  return [...new Map(references.map((reference) => [reference.id, reference])).values()];
}

/** Whether membership changes as time passes, with no other change, other than by events that leave a window. */
export function isTimeBound(condition: Condition): boolean {
  return listLeaves(condition).some((leaf) => leaf.isTimeBound);
}

/** Whether membership depends on the outcomes of messages. */
export function readsMessages(condition: Condition): boolean {
  return listLeaves(condition).some((leaf) => leaf.readsMessages);
}

/** What is asked of events, a condition at a time. */
export function askedEvents(condition: Condition): AskedEvent[] {
  return listLeaves(condition).flatMap(({ event }) => (event === undefined ? [] : [event]));
}

/** A period in which events of a kind count. */
export type Window = { eventNumber: number; withinMs: number };

/** All periods of conditions on events, each once. */
export function windowsOf(condition: Condition): Window[] {
  const windows = askedEvents(condition).flatMap(({ number, withinMs }) =>
    withinMs === null ? [] : [{ eventNumber: number, withinMs }],
  );
  return [...new Map(windows.map((window) => [`${window.eventNumber} ${window.withinMs}`, window])).values()];
}

type TreeReading = Reading & { leafCount: number };

function readTree(input: unknown, lookups: Lookups): { condition: Condition | null; issues: string[] } {
  const reading: TreeReading = { ...lookups, issues: [], leafCount: 0 };
  const condition = readCondition(reading, { value: input, path: 'conditions' }, 1);
  return { condition, issues: reading.issues };
}

const groupType = 'group';
const typeNames = [groupType, ...Object.keys(leafTypes)];

/** Recursive, and no deeper than `levelsMax`, whatever the input. */
function readCondition(reading: TreeReading, place: Place, level: number): Condition | null {
  if (level > levelsMax) {
    return addIssue(reading, `${place.path} must not be nested deeper than ${levelsMax} levels`);
  }
  const members = readMembers(reading, place);
  if (members === null) return null;
  const typePlace = takeMember(reading, members, 'type');
  const typeName = typePlace && readOneOf(reading, typePlace, typeNames);
  if (typeName === null) return null;
  return typeName === groupType ? readGroup(reading, members, level) : readLeaf(reading, members, typeName);
}

function readGroup(reading: TreeReading, members: Members, level: number): Group | null {
  refuseOtherMembers(reading, members, ['type', 'match', 'conditions']);
  const matchPlace = takeMember(reading, members, 'match');
  const match = matchPlace && readOneOf(reading, matchPlace, matches);
  const place = takeMember(reading, members, 'conditions');
  if (place === null) return null;
  if (!Array.isArray(place.value)) return addIssue(reading, `${place.path} must be an array`);
  if (place.value.length === 0) return addIssue(reading, `${place.path} must have at least 1 item`);
  const conditions: Condition[] = [];
  for (const [index, value] of place.value.entries()) {
    // The rest is not read: an input may have as many leaves as fit into a body.
    if (reading.leafCount > leavesMax) return null;
    const condition = readCondition(reading, { value, path: `${place.path}[${index}]` }, level + 1);
    if (condition !== null) conditions.push(condition);
  }
  return match !== null && conditions.length === place.value.length
    ? { kind: 'group', match, conditions }
    : null;
}

function readLeaf(reading: TreeReading, members: Members, typeName: string): Condition | null {
  reading.leafCount += 1;
  if (reading.leafCount > leavesMax) {
    // Among so many issues that it would be left out, it is not needed either.
    return addIssue(reading, `conditions must have at most ${leavesMax} conditions that are not groups`);
  }
  const leaf = leafTypes[typeName]?.read(reading, members) ?? null;
  return leaf === null ? null : { kind: 'leaf', given: members.fields, ...leaf };
}
