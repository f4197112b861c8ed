/**
 * Variables that a message names and nobody gave stay as written, which is what the specification wants and rarely
 * what the sender did. They are told in a header, since the body of the answer is fixed.
 */

const header = 'postillion-missing-variables';

/** For the description of a route. */
export const missingVariablesHeader = {
  [header]:
    'Names of placeholders that stay as written because no value was given, separated by commas; `...` stands for ' +
    'further ones. Not sent where every placeholder has a value.',
};

/** Proxies refuse headers of some thousand bytes, and the message was sent. */
const headerLengthMax = 1_000;

/** Names are letters, digits, dots and underscores, so that nothing in them can break out of a header. */
export function tellMissingVariables(names: readonly string[]): Record<string, string> {
  if (names.length === 0) return {};
  let told = '';
  for (const name of names) {
    const longer = told === '' ? name : `${told}, ${name}`;
    if (longer.length > headerLengthMax) return { [header]: told === '' ? '...' : `${told}, ...` };
    told = longer;
  }
  return { [header]: told };
}
