/**
 * Conditions that become part of a statement.
 *
 * A condition whose top level is an `or` swallows what stands before it: of `organization_id = $1 and a or b` the part
 * after the `or` holds for the rows of every organization. So a condition is not a string that each statement must
 * remember to wrap, but a type whose values are wrapped when they are made; a function that composes a statement takes
 * nothing else, and an ESLint rule (`local/closed-predicates`) says so where a string is put after an `and`.
 */

declare const isClosed: unique symbol;

/**
 * SQL of one boolean expression in parentheses of its own: neither an `and` beside it nor a `not` before it reaches
 * inside. All values in it are parameters.
 */
export type Predicate = string & { readonly [isClosed]: true };

/**
 * Makes a predicate of SQL of our own. Throws if its parentheses would not keep it together: that is a fault of the
 * program, since nothing from outside is ever part of the text.
 */
export function toPredicate(sql: string): Predicate {
  if (!isBalanced(sql)) throw new Error(`not an expression of its own: ${sql}`);
  // The one place where a text becomes a predicate.
  return `(${sql})` as Predicate;
}

/** Holds where all of them do; of none, everywhere. */
export function allOf(predicates: readonly Predicate[]): Predicate {
  return toPredicate(predicates.length === 0 ? 'true' : predicates.join(' and '));
}

/** Holds where one of them does; of none, nowhere. */
export function anyOf(predicates: readonly Predicate[]): Predicate {
  return toPredicate(predicates.length === 0 ? 'false' : predicates.join(' or '));
}

/** Never holds where the other does; of null it is null. */
export function negate(predicate: Predicate): Predicate {
  return toPredicate(`not ${predicate}`);
}

/**
 * Whether every parenthesis is closed in the text in which it was opened, none of those around it is, and neither a
 * quotation nor a comment reaches over the end.
 */
function isBalanced(sql: string): boolean {
  const bare = sql.replaceAll(/'[^']*'|"[^"]*"/g, '');
  if (/['"]|--|\/\*/.test(bare)) return false;
  let depth = 0;
  for (const [parenthesis] of bare.matchAll(/[()]/g)) {
    depth += parenthesis === '(' ? 1 : -1;
    if (depth < 0) return false;
  }
  return depth === 0;
}
