import { dateOf } from '../platform/clock.ts';
import { allOf, anyOf, type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import { type Doing, type EventField, fieldValue, happenedAfter, storedAfter } from './contact-events.ts';

/**
 * How often every contact did what the conditions of a statement ask about. Events of a kind are read once for all of them,
 * and what they compare comes out of each payload once: ninety conditions about 20,000 events took PostgreSQL 770 ms one after
 * the other, and take 98 ms so.
 */
export type EventCounts = {
  /** SQL for the value of a field, for the predicates of `countOf`. */
  valueOf: (eventNumber: number, field: EventField) => string;
  /** SQL for how many events of a contact count, which is never null. */
  countOf: (counted: Omit<Doing, 'times'>) => string;
  /**
   * What is to be joined to `contact` once all conditions are compiled: at most one row for each contact. By hash alone:
   * where the planner takes a table for small that is not, it would look through all of them for each contact.
   */
  joins: () => string;
};

/** What is asked of events of one number. */
type Asked = {
  /** SQL for the values, by the names of their fields. */
  values: Map<string, string>;
  counted: Predicate[];
  sinces: (Date | null)[];
};

/** `bind` makes a value a parameter and returns its placeholder. */
export function createEventCounts(organization: string, bind: (value: unknown) => string): EventCounts {
  const asked = new Map<number, Asked>();
  const askedOf = (eventNumber: number): Asked => {
    const known = asked.get(eventNumber) ?? { values: new Map(), counted: [], sinces: [] };
    asked.set(eventNumber, known);
    return known;
  };
  return {
    valueOf: (eventNumber, field) => {
      const { values } = askedOf(eventNumber);
      if (!values.has(field.name)) values.set(field.name, fieldValue(field, bind));
      return `e.value_${[...values.keys()].indexOf(field.name)}`;
    },
    countOf: ({ eventNumber, since, where }) => {
      const { counted, sinces } = askedOf(eventNumber);
      sinces.push(since);
      const place = counted.push(allOf([...happenedAfter(since, bind), ...where])) - 1;
      return `coalesce(events_${eventNumber}.times_${place}, 0)`;
    },
    joins: () =>
      [...asked].map(([eventNumber, each]) => joinOf(eventNumber, each, organization, bind)).join('\n'),
  };
}

/** By the index events_of_definition. By `offset` values are read once for an event, and not once for each count. */
function joinOf(
  eventNumber: number,
  { values, counted, sinces }: Asked,
  organization: string,
  bind: (value: unknown) => string,
): string {
  const since = earliestOf(sinces);
  const columns = [...values.values()].map((value, index) => `, ${value} as value_${index}`);
  const counts = counted.map((each, index) => `, count(*) filter (where ${each}) as times_${index}`);
  const read = allOf([
    toPredicate(`e.organization_id = ${organization}::uuid`),
    toPredicate(`e.definition_number = ${bind(eventNumber)}::integer`),
    ...happenedAfter(since, bind),
    ...storedAfter(since, bind),
  ]);
  return `left join (
      select e.contact_id${counts.join('')}
      from (
        select e.contact_id, e.occurred_at${columns.join('')}
        from events e
        where ${read}
        offset 0
      ) e
      where ${anyOf(counted)}
      group by e.contact_id
    ) events_${eventNumber} on events_${eventNumber}.contact_id = contact.id`;
}

/** Null for whatever is kept. */
function earliestOf(sinces: readonly (Date | null)[]): Date | null {
  const times = sinces.map((since) => since?.getTime() ?? -Infinity);
  const earliestMs = Math.min(...times);
  return Number.isFinite(earliestMs) ? dateOf(earliestMs) : null;
}
