/** Reading what a program sends that was written for another service, of which nothing is known yet. */

export type Fields = Readonly<Record<string, unknown>>;

export function isObject(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** What is left out, or null, which means the same in the bodies of all services here, stays out. */
export function withoutNulls(fields: Fields): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(fields).filter(([, value]) => value !== undefined && value !== null),
  );
}

/** Gives fields other names; what is not named keeps its own, so that it is refused by it if nobody knows it. */
export function rename(fields: Fields, names: Readonly<Record<string, string>>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(fields).map(([name, value]) => [
      Object.hasOwn(names, name) ? (names[name] ?? name) : name,
      value,
    ]),
  );
}
