import { decodeWords } from 'postal-mime';

/** The header of a message, or of a part of one, field by field. */

/** `value` is unfolded, and as it was written: its encoded words are not decoded. */
export type HeaderField = { name: string; lowered: string; value: string };

export type Head = { fields: readonly HeaderField[]; /** One character an octet. */ body: string };

/** Null where there is a line that is neither a field nor goes on with one. `text` has one character an octet. */
export function splitHead(text: string): Head | null {
  const fields: { name: string; lines: string[] }[] = [];
  let start = 0;
  while (start < text.length) {
    const end = text.indexOf('\r\n', start);
    const line = text.slice(start, end === -1 ? text.length : end);
    start = end === -1 ? text.length : end + 2;
    if (line === '') break;
    if (/^[ \t]/.test(line)) {
      const last = fields.at(-1);
      if (last === undefined) return null;
      last.lines.push(line);
      continue;
    }
    // RFC 5322 §2.2, and blanks before the colon as §4.5 still reads them.
    const name = /^([!-9;-~]{1,200})[ \t]{0,10}:/.exec(line);
    if (name?.[1] === undefined) return null;
    fields.push({ name: name[1], lines: [line.slice(name[0].length)] });
  }
  return {
    fields: fields.map(({ name, lines }) => ({
      name,
      lowered: name.toLowerCase(),
      value: toText(lines.join('')).trim(),
    })),
    body: text.slice(start),
  };
}

/** Where the header ends, in octets; all of it where no empty line ends it. */
export function headLengthOf(source: Buffer): number {
  const end = source.indexOf('\r\n\r\n');
  return end === -1 ? source.length : end;
}

/** UTF-8 (RFC 6532), or what Western Europe wrote before that. */
function toText(octets: string): string {
  if (/^[\0-\x7f]*$/.test(octets)) return octets;
  return decodeUtf8(Buffer.from(octets, 'latin1'));
}

/** As `windows-1252` where it is no UTF-8: programs that say nothing of their charset write one of both. */
export function decodeUtf8(bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder('windows-1252').decode(bytes);
  }
}

/** As people read it: encoded words decoded, and on one line. */
export function readTextValue(value: string): string {
  return decodeWords(value)
    .replace(/[\r\n\t]+/g, ' ')
    .trim();
}

export function valuesOf({ fields }: Pick<Head, 'fields'>, lowered: string): string[] {
  return fields.filter((field) => field.lowered === lowered).map(({ value }) => value);
}

export function valueOf(head: Pick<Head, 'fields'>, lowered: string): string {
  return valuesOf(head, lowered)[0] ?? '';
}

/** Of `Content-Type` or `Content-Disposition`, by names in lower case, joined and decoded as RFC 2231 §3 and §4 have it. */
export function readParameters(value: string): ReadonlyMap<string, string> {
  const pieces = new Map<string, { place: number; isEncoded: boolean; text: string }[]>();
  for (const [, name = '', quoted, token = ''] of value
    .slice(0, parametersLengthMax)
    .matchAll(parameterPattern)) {
    const [, base = '', place = '0', star] = /^(.*?)(?:\*(\d{1,3}))?(\*)?$/.exec(name.toLowerCase()) ?? [];
    const text = quoted === undefined ? token : quoted.replace(/\\(.)/g, '$1');
    const own = pieces.get(base) ?? [];
    own.push({ place: Number(place), isEncoded: star !== undefined, text });
    pieces.set(base, own);
  }
  return new Map([...pieces].map(([name, own]) => [name, joinPieces(own)]));
}

/** A header is as long as it likes; of what names a file, more would be an attack. */
const parametersLengthMax = 8_000;

const parameterPattern = /;[ \t]*([^\s=;"]{1,100})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))/g;

function joinPieces(own: { place: number; isEncoded: boolean; text: string }[]): string {
  const pieces = own.toSorted((first, second) => first.place - second.place);
  const encoded = pieces.filter(({ isEncoded }) => isEncoded);
  // Of two spellings of one name the one of RFC 2231 says more.
  if (encoded.length === 0) return decodeWords(pieces.map(({ text }) => text).join(''));
  const isSplit = pieces.some(({ place }) => place > 0);
  const [, charset = 'utf-8', first = ''] = /^([^']*)'[^']*'(.*)$/s.exec(encoded[0]?.text ?? '') ?? [
    '',
    'utf-8',
    encoded[0]?.text ?? '',
  ];
  const rest = isSplit ? pieces.filter((piece) => piece !== encoded[0]) : [];
  const octets = [
    decodePercents(first),
    ...rest.map(({ isEncoded, text }) => (isEncoded ? decodePercents(text) : text)),
  ];
  const bytes = Buffer.from(octets.join(''), 'latin1');
  try {
    return new TextDecoder(charset === '' ? 'utf-8' : charset).decode(bytes);
  } catch {
    return decodeUtf8(bytes);
  }
}

function decodePercents(text: string): string {
  return text.replace(/%([0-9a-f]{2})/gi, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)));
}
