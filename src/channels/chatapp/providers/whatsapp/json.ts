/** What a far side wrote may have any type: what has another than the documented one is as if it were not there. */

export type JsonObject = Readonly<Record<string, unknown>>;

export function objectOf(value: unknown): JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? { ...value } : {};
}

export function listOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

export function textOf(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

/** Meta writes ids as text in some places and as numbers in others. */
export function idOf(value: unknown): string | null {
  const text = typeof value === 'number' && Number.isSafeInteger(value) ? String(value) : textOf(value);
  return text !== null && /^\d{1,32}$/.test(text) ? text : null;
}
