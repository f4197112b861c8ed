import { type Predicate, toPredicate } from './predicate.ts';

/**
 * Statements that are sent at once (`together`) cannot be left out because of what one before them finds. So that one
 * says that those after it are to do nothing, by a setting of the transaction, and they ask for it.
 */
export const isNotStopped = toPredicate("current_setting('postillion.stop', true) is distinct from 'yes'");

/** SQL of a column: stops the statements after it if the condition does not hold. */
export function stopUnless(condition: Predicate): string {
  return `set_config('postillion.stop', case when ${isNotStopped} and ${condition} then 'no' else 'yes' end, true) as stop`;
}
