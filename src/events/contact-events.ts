import { lowestIdAt } from '../platform/ids.ts';
import { allOf, type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import { aheadMsMax, type FieldType } from './schema.ts';

/** Conditions about what a contact did: how often an event of one kind happened. */
export type Doing = {
  /** The number of the definition. */
  eventNumber: number;
  /** Those that happened then or earlier do not count. */
  since: Date | null;
  /** On the values of the fields (`fieldValue`); all of them hold for an event that counts. */
  where: readonly Predicate[];
  /** How many of them, 1 at least: so many or more, or just so many. */
  times: { least: number } | { exactly: number };
};

/** SQL for the organization, and for the column of the contact. */
export type DoingScope = { organization: string; contact: string };

/** A field of a payload, and the type that its event declares. */
export type EventField = { name: string; type: FieldType };

/**
 * SQL that is true if the contact did it, and is never null, for statements about some contacts: their events are found by
 * the primary key, contact after contact. For all of them there is `createEventCounts`. `bind` makes a value a parameter and
 * returns its placeholder.
 *
 * By `offset` the sub-select stays one for each contact, and by the addition to the number only the primary key can
 * serve it: the planner's statistics of a month that has just begun would have it read everybody's events.
 */
export function hasDone(
  doing: Doing,
  { organization, contact }: DoingScope,
  bind: (value: unknown) => string,
): Predicate {
  const { eventNumber, since, where, times } = doing;
  const counted = allOf([
    toPredicate(`e.organization_id = ${organization}::uuid`),
    toPredicate(`e.contact_id = ${contact}`),
    toPredicate(`e.definition_number + 0 = ${bind(eventNumber)}::integer`),
    ...happenedAfter(since, bind),
    ...storedAfter(since, bind),
    ...where,
  ]);
  if ('least' in times) {
    return toPredicate(`exists (
      select
      from events e
      where ${counted}
      offset ${bind(times.least - 1)}::bigint
    )`);
  }
  return toPredicate(`(
      select count(*)
      from events e
      where ${counted}
    ) = ${bind(times.exactly)}::bigint`);
}

/** Always, if `since` is null. */
export function happenedAfter(since: Date | null, bind: (value: unknown) => string): Predicate[] {
  if (since === null) return [];
  return [toPredicate(`e.occurred_at > ${bind(since.toISOString())}::timestamptz`)];
}

/** What holds for all that happened after an instant, and spares the partitions before it. */
export function storedAfter(since: Date | null, bind: (value: unknown) => string): Predicate[] {
  if (since === null) return [];
  return [toPredicate(`e.id >= ${bind(lowestEventId(since))}::uuid`)];
}

/** An id is made when a request is read, and waits for its turn and for the clocks of two nodes at most so long. */
const waitingMsMax = 600_000;

/** Of what happened after an instant: an event may arrive before it happens. Earlier partitions are not read. */
export function lowestEventId(since: Date): string {
  return lowestIdAt(Math.max(since.getTime() - aheadMsMax - waitingMsMax, 0));
}

/** As `parseDateValue` writes them. */
const datePattern = '^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{3}Z)?$';

/**
 * How the value of a field comes out of a payload, null if it has another type: the field may have been declared as
 * something else, or not at all, when the event was sent. Only within a `case` is nothing cast before it was tested.
 */
const valueForms: Readonly<Record<FieldType, { jsonType: string; toValue: (text: string) => string }>> = {
  string: { jsonType: 'string', toValue: (text) => text },
  number: { jsonType: 'number', toValue: (text) => `${text}::numeric` },
  integer: { jsonType: 'number', toValue: (text) => `${text}::numeric` },
  boolean: { jsonType: 'boolean', toValue: (text) => `${text}::boolean` },
  date: {
    jsonType: 'string',
    toValue: (text) => `(case when ${text} ~ '${datePattern}' then ${text} end) collate "C"`,
  },
};

/** SQL for the value of a field of the events that `hasDone` counts: a `numeric`, a `boolean` or a text. */
export function fieldValue({ name, type }: EventField, bind: (value: unknown) => string): string {
  const key = `${bind(name)}::text`;
  const { jsonType, toValue } = valueForms[type];
  return `(case when jsonb_typeof(e.payload -> ${key}) = '${jsonType}' then ${toValue(`(e.payload ->> ${key})`)} end)`;
}
