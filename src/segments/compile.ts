import { createEventCounts } from '../events/events.ts';
import { allOf, anyOf, negate, type Predicate } from '../platform/postgres/predicate.ts';
import { type Condition, type Group, listLeaves } from './conditions.ts';
import type { Compiler } from './leaf.ts';

export type { Compiler } from './leaf.ts';

/**
 * Conditions as SQL: one boolean expression over the alias `contact`, a row of contacts. It is never null, so that it
 * may stand in a `where` as well as in a select list; and all values in it are parameters.
 *
 * A contact's own columns are compared in plain expressions. Memberships and messages become `exists`, which PostgreSQL
 * turns into joins at the top of a `where`, and in groups of `all` and `none` there.
 */
export function compileConditions(condition: Condition, compiler: Compiler): Predicate {
  return condition.kind === 'leaf' ? condition.compile(compiler) : compileGroup(condition, compiler);
}

/** Each leaf by itself, in the order of `explainConditions`. */
export function compileLeaves(condition: Condition, compiler: Compiler): Predicate[] {
  return listLeaves(condition).map((leaf) => leaf.compile(compiler));
}

function compileGroup({ match, conditions }: Group, compiler: Compiler): Predicate {
  const parts = conditions.map((condition) => compileConditions(condition, compiler));
  switch (match) {
    case 'all':
      return allOf(parts);
    case 'any':
      return anyOf(parts);
    case 'none':
      // Negated one by one, since PostgreSQL does not turn a negated `or` into joins.
      return allOf(parts.map(negate));
  }
}

/**
 * A predicate over `contact`, what is to be joined to it, and what it is run with. `first` are the parameters that come
 * before its own: the organization is the first of them. `isPartial` where only some contacts matter.
 */
export function compilePredicate(
  condition: Condition,
  first: readonly unknown[],
  at: Date,
  { isPartial }: { isPartial: boolean } = { isPartial: false },
): CompiledPredicate {
  const values = [...first];
  const bind = (value: unknown) => `$${values.push(value)}`;
  const organization = '$1';
  const eventCounts = isPartial ? null : createEventCounts(organization, bind);
  const text = compileConditions(condition, { bind, at, organization, eventCounts });
  return { text, joins: eventCounts?.joins() ?? '', values };
}

/** `joins` is empty, or stands after `contacts contact`, to be joined by hash alone (events/event-counts.ts). */
export type CompiledPredicate = { text: Predicate; joins: string; values: readonly unknown[] };
