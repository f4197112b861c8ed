/**
 * The members of a JSON object that a far side wrote, each of any type; none where the text is missing, no JSON or no
 * object, as with the pages of a proxy.
 */
export function parseJsonObject(text: string | null): Readonly<Record<string, unknown>> {
  if (text === null) return {};
  try {
    const parsed: unknown = JSON.parse(text);
    return typeof parsed === 'object' && parsed !== null ? { ...parsed } : {};
  } catch {
    return {};
  }
}
