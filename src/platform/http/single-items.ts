import type { TSchema } from 'typebox';

/**
 * A field that is a list may be given as the one text that it would hold, where its schema says so (`mayBeOne`): many
 * clients write one address as a text. It is made a list before the body is checked, so that nothing behind knows of it.
 */
export type SingleItems = (value: unknown) => void;

/** Of the fields of the body itself. Null where the schema has none. */
export function planSingleItems(schema: TSchema): SingleItems | null {
  const { properties = {} } = schema as { properties?: Readonly<Record<string, { mayBeOne?: boolean }>> }; // JSON Schema's own.
  const names = Object.keys(properties).filter((name) => properties[name]?.mayBeOne === true);
  if (names.length === 0) return null;
  return (value) => {
    if (typeof value !== 'object' || value === null) return;
    const object = value as Record<string, unknown>;
    for (const name of names) if (typeof object[name] === 'string') object[name] = [object[name]];
  };
}
