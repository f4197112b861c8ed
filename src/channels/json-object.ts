/**
 * The members of a JSON object that a far side wrote, each of any type; none where the text is missing, no JSON or no
 * object, as with the pages of a proxy.
 */
export function parseJsonObject(text: string | null): Readonly<Record<string, unknown>> {
  // APNs says no more to a push that it takes, and an error of the parser costs a twentieth of the push.
  if (text === null || text === '') return {};
  try {
    const parsed: unknown = JSON.parse(text);
    return typeof parsed === 'object' && parsed !== null ? { ...parsed } : {};
  } catch {
    return {};
  }
}
