/**
 * The beginning of a phone number in E.164 that somebody searches for: `+1415` of `+1 415`, and of `1415` or ` 1415`, since
 * a plus in a query may arrive as a blank. Digits with blanks between them and no plus may be the beginning of a name.
 *
 * Null of what no number begins with. Recipients of all channels share the index of addresses: a name may be the beginning
 * of many addresses of emails, all of which would be found, sorted and thrown away (2 s with two million messages).
 */
export function readNumberPrefix(search: string): string | null {
  const text = search.trim();
  const prefix = text.startsWith('+') ? text.replaceAll(/\s/g, '') : `+${text}`;
  return text !== '' && /^\+(?:[1-9]\d{0,14})?$/.test(prefix) ? prefix : null;
}
