/**
 * A placeholder without a value stays as written. The specification demands it, but a sender rarely wants it. The
 * response names such placeholders in a header, since its body is fixed.
 */

const header = 'postillion-missing-variables';

/** For a route's description in OpenAPI. */
export const missingVariablesHeader = {
  [header]:
    'Names of placeholders that were left as written because no value was given, separated by commas; `...` stands for more. Absent if every placeholder has a value.',
};

/**
 * Proxies refuse headers of several thousand bytes, and the response would be lost although the message is accepted.
 */
const headerLengthMax = 1_000;
/** A longer name is left out, so that it does not take the room of all names after it. */
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
