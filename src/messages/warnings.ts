/**
 * What is likely a mistake in a message or in a campaign is no reason to refuse it. The response names it in a header, since
 * its body is fixed.
 */

export const warningsHeaderName = 'postillion-warnings';

/** What may stand in the header of any send, for descriptions in OpenAPI. */
export const foreignSyntaxWarnings =
  '`foreign_block` (`{{#if x}}`), `foreign_expression` (`{{name|there}}`), `foreign_tag` (`{% if x %}`), ' +
  '`foreign_merge_tag` (`*|FNAME|*`) and `foreign_percent_tag` (`%%name%%`): placeholders of other template languages, ' +
  'which stay as written.';

/** For a route's description in OpenAPI. */
export const warningsHeader = {
  [warningsHeaderName]: `Names of likely mistakes, separated by commas. ${foreignSyntaxWarnings} Absent if there are none.`,
};

/** Each name stands once, so that it is short; it has no text of anybody. */
export function tellWarnings(names: readonly string[]): Record<string, string> {
  return names.length === 0 ? {} : { [warningsHeaderName]: names.join(', ') };
}
