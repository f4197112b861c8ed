import type { EventCounts } from '../events/events.ts';
import type { Schema } from '../platform/http/openapi.ts';
import type { Predicate } from '../platform/postgres/predicate.ts';
import type { Members, Reading } from './reading.ts';

/** What a statement is compiled with. */
export type Compiler = {
  /** Makes a value a parameter of the statement and returns its placeholder, `$3` for instance. */
  bind: (value: unknown) => string;
  /** The present time, for conditions that look back from it. */
  at: Date;
  /** SQL for the id of the organization. */
  organization: string;
  /** Counts of everybody's events; null where only some contacts matter, whose events are found by the contact. */
  eventCounts: EventCounts | null;
};

/** Something of the organization that a condition refers to. */
export type Reference = { kind: 'list' | 'tag' | 'segment' | 'property' | 'event'; id: string };

/** A condition without conditions below it, as far as it was checked. */
export type Leaf = {
  /** The fields as they were given. */
  given: Readonly<Record<string, unknown>>;
  /** Over `contact`, a row of contacts: true or false, and never null. */
  compile: (compiler: Compiler) => Predicate;
  references: readonly Reference[];
  /** Its result changes as time passes, with no other change, and not only because events leave its period. */
  isTimeBound: boolean;
  /** Its result depends on the outcomes of messages. */
  readsMessages: boolean;
  /** What it asks of events. */
  event?: AskedEvent;
};

/** The event that a condition asks about, the fields that it reads, and how far it looks back, if not for ever. */
export type AskedEvent = { id: string; number: number; fields: readonly string[]; withinMs: number | null };

export type LeafForm = {
  fields: Readonly<Record<string, Schema>>;
  optional?: readonly string[];
};

/** One type of condition: a file under `nodes/`, and a line in the registry. */
export type LeafType = {
  /** For the documentation: what it says of a contact, in a sentence or two. */
  description: string;
  /** Its name among the schemas of the API: `FieldCondition`. */
  title: string;
  /** The forms that it may have: the schemas of its fields besides `type`, all of them required unless named. */
  forms: readonly LeafForm[];
  /** For the documentation: a condition of this type. */
  example: Readonly<Record<string, unknown>>;
  /** Reads the fields besides `type`. Null if anything is wrong; the issues then say what. */
  read: (reading: Reading, members: Members) => Omit<Leaf, 'given'> | null;
};
