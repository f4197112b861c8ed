import type { ForeignName } from '../channels/foreign-syntax.ts';

/**
 * What is likely a mistake in a message is no reason to refuse it. The response names it in a header, since its body is
 * fixed.
 */

const header = 'postillion-warnings';

/** What may stand in the header of any send, for descriptions in OpenAPI. */
export const foreignSyntaxWarnings =
  '`foreign_block` (`{{#if x}}`), `foreign_expression` (`{{name|there}}`), `foreign_tag` (`{% if x %}`), ' +
  '`foreign_merge_tag` (`*|FNAME|*`) and `foreign_percent_tag` (`%%name%%`): placeholders of other template languages, ' +
  'which stay as written.';

/** For a route's description in OpenAPI. */
export const warningsHeader = {
  [header]: `Names of likely mistakes, separated by commas. ${foreignSyntaxWarnings} Absent if there are none.`,
};

/** Each name stands once, so that it is short; it has no text of anybody. */
export function tellWarnings(warnings: readonly ForeignName[]): Record<string, string> {
  return warnings.length === 0 ? {} : { [header]: warnings.join(', ') };
}
