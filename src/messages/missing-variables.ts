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
/** A longer name is left out, so that it does not hide all those after it. */
const nameLengthMax = 100;

/** Names are letters, digits, dots and underscores, so that nothing in them can break out of a header. */
export function tellMissingVariables(names: readonly string[]): Record<string, string> {
  if (names.length === 0) return {};
  const told: string[] = [];
  let length = 0;
  for (const name of names) {
    if (name.length > nameLengthMax) continue;
    length += name.length + 2;
    if (length > headerLengthMax) break;
    told.push(name);
  }
  if (told.length < names.length) told.push('...');
  return { [header]: told.join(', ') };
}
