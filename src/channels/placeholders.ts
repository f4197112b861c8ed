import {
  allWords,
  findPlaces,
  mayHaveLinks,
  type Place,
  placeholderMark,
  type Places,
  type TextForm,
} from './placeholder-places.ts';
import { encodeUrlValue } from './url-values.ts';

/**
 * Text replacement: `{{name}}` and `{{{name}}}` are cut out of a text once, and filled in many times. The scanner
 * walks forwards only, so that a megabyte of `{{{{` costs as much as any other megabyte, and nothing that was
 * filled in is looked at again. How a value is written is decided when the text is cut, by where its placeholder stands.
 */

/** The names that a value may be given for, as a regular expression. No schema of a record has another limit for names. */
export const valueNamePattern = '^[A-Za-z_][A-Za-z0-9_.]{0,254}$';

/** What a placeholder may be replaced by. Only own properties count: `{{constructor}}` is no value. */
export type Values = Readonly<Record<string, string | number | boolean>>;

export type Placeholder = {
  name: string;
  /** False for `{{{name}}}`, whose value goes in as it is wherever it stands. */
  escaped: boolean;
  /** The placeholder as its author wrote it: what stays where no value is given. */
  written: string;
};

export type PlacedPlaceholder = Placeholder & { place: Place };

/** Literal parts and the placeholders between them: always one literal more than there are placeholders. */
export type CompiledText = {
  literals: readonly string[];
  placeholders: readonly PlacedPlaceholder[];
};

/**
 * Cuts a text at its placeholders. Names are `[A-Za-z_][A-Za-z0-9_.]*`, case-sensitive, with spaces and tabs
 * allowed around them. Of a longer run of braces the innermost count: `{{{{a}}}}` is `{`, `{{{a}}}`, `}`.
 */
export function compileText(text: string, form: TextForm): CompiledText {
  const literals: string[] = [];
  const placeholders: PlacedPlaceholder[] = [];
  const places = placesOf(text, form);
  let literalStart = 0;
  for (const { start, end, placeholder } of scanPlaceholders(text)) {
    literals.push(text.slice(literalStart, start));
    placeholders.push({ ...placeholder, place: places.at(placeholders.length) });
    literalStart = end;
  }
  literals.push(text.slice(literalStart));
  return { literals, placeholders };
}

function placesOf(text: string, form: TextForm): Places {
  if (form === 'text' && !mayHaveLinks(text)) return allWords;
  // As long as the text, so that positions are the same.
  const unmarked = text.includes(placeholderMark) ? text.replaceAll(placeholderMark, ' ') : text;
  const marked = createJoiner();
  let count = 0;
  let literalStart = 0;
  for (const { start, end } of scanPlaceholders(text)) {
    marked.add(unmarked.slice(literalStart, start));
    marked.add(placeholderMark);
    literalStart = end;
    count += 1;
  }
  if (count === 0) return allWords;
  marked.add(unmarked.slice(literalStart));
  return findPlaces(marked.join(), count, form);
}

/** More pieces at once would be memory; fewer, more joining. */
const piecesMax = 1_024;

type Joiner = { add: (piece: string) => void; join: () => string };

function createJoiner(): Joiner {
  let joined = '';
  let pieces: string[] = [];
  return {
    add: (piece) => {
      if (pieces.push(piece) < piecesMax) return;
      joined += pieces.join('');
      pieces = [];
    },
    join: () => joined + pieces.join(''),
  };
}

/**
 * The same as `fillText(compileText(text), …)` and `listMissing`, for a text that is filled once: nothing is kept of
 * its placeholders but where they stand, since 30 MB can hold six million.
 */
export function fillOnce(
  text: string,
  values: Values,
  form: TextForm,
  lengthMax: number,
): { text: string | null; missing: string[] } {
  const missing = new Set<string>();
  const places = placesOf(text, form);
  const filled = createJoiner();
  let index = 0;
  let length = 0;
  let literalStart = 0;
  const add = (piece: string) => {
    length += piece.length;
    filled.add(piece);
  };
  for (const { start, end, placeholder } of scanPlaceholders(text)) {
    const value = findValue(placeholder, places.at(index), values);
    index += 1;
    if (value === null) {
      if (missing.size < missingMax) missing.add(placeholder.name);
      continue;
    }
    add(text.slice(literalStart, start));
    add(value);
    literalStart = end;
    // Looked at in every round: a short text with many placeholders and one long value grows without bounds.
    if (length > lengthMax) return { text: null, missing: [...missing] };
  }
  add(text.slice(literalStart));
  return { text: length > lengthMax ? null : filled.join(), missing: [...missing] };
}

type FoundPlaceholder = { start: number; end: number; placeholder: Placeholder };

function* scanPlaceholders(text: string): Generator<FoundPlaceholder> {
  let position = text.indexOf('{{');
  while (position !== -1) {
    const nameStart = skipBlanks(text, skipBraces(text, position, openingBrace, Infinity));
    const nameEnd = skipName(text, nameStart);
    const closingStart = skipBlanks(text, nameEnd);
    const closingEnd = skipBraces(text, closingStart, closingBrace, 3);
    const found =
      nameEnd > nameStart
        ? findPlaceholder(text, position, nameStart, nameEnd, closingStart, closingEnd)
        : null;
    if (found !== null) yield found;
    // Whatever was walked over holds no other opening, so that no character is looked at twice.
    position = text.indexOf('{{', found?.end ?? closingEnd);
  }
}

function findPlaceholder(
  text: string,
  bracesStart: number,
  nameStart: number,
  nameEnd: number,
  closingStart: number,
  closingEnd: number,
): FoundPlaceholder | null {
  const openingEnd = skipBraces(text, bracesStart, openingBrace, Infinity);
  const braces = Math.min(openingEnd - bracesStart, closingEnd - closingStart, 3);
  if (braces < 2) return null;
  const start = openingEnd - braces;
  const end = closingStart + braces;
  return {
    start,
    end,
    placeholder: {
      name: text.slice(nameStart, nameEnd),
      escaped: braces === 2,
      written: text.slice(start, end),
    },
  };
}

/**
 * The text with its values, or null as soon as it is longer than `lengthMax` UTF-16 units. What has no value stays
 * exactly as written.
 */
export function fillText(compiled: CompiledText, values: Values, lengthMax: number): string | null {
  const { literals, placeholders } = compiled;
  let filled = literals[0] ?? '';
  for (const [index, placeholder] of placeholders.entries()) {
    // Checked in every round: a short text with many placeholders and one long value grows without bounds.
    if (filled.length > lengthMax) return null;
    filled += findValue(placeholder, placeholder.place, values) ?? placeholder.written;
    filled += literals[index + 1] ?? '';
  }
  return filled.length > lengthMax ? null : filled;
}

/** The value that replaces a placeholder, written as its place asks for, or null where there is none. */
export function findValue(
  { name, escaped }: Pick<Placeholder, 'name' | 'escaped'>,
  { part, escape }: Place,
  values: Values,
): string | null {
  if (!Object.hasOwn(values, name)) return null;
  const value = String(values[name]);
  if (!escaped) return value;
  const written = part === 'words' ? value : encodeUrlValue(part, value);
  switch (escape) {
    case 'none':
      return written;
    case 'html':
      return escapeHtml(written);
    case 'unquoted_alone':
      return written === '' ? '""' : escapeUnquoted(written);
    case 'unquoted':
      return escapeUnquoted(written);
  }
}

/** The distinct names in texts, in the order of their first appearance; the first `countMax` at most. */
export function listPlaceholders(texts: readonly string[], countMax: number): string[] {
  const names = new Set<string>();
  for (const text of texts) {
    for (const { placeholder } of scanPlaceholders(text)) {
      if (names.size >= countMax) return [...names];
      names.add(placeholder.name);
    }
  }
  return [...names];
}

/** More than that would not be read, and names may be of any length. */
const missingMax = 50;

/** The distinct names that no value is given for, in the order of their first appearance; the first fifty at most. */
export function listMissing({ placeholders }: CompiledText, values: Values): string[] {
  const missing = new Set<string>();
  for (const { name } of placeholders) {
    if (missing.size >= missingMax) break;
    if (!Object.hasOwn(values, name)) missing.add(name);
  }
  return [...missing];
}

const htmlSpecial = /[&<>"']/;
const htmlSpecials = /[&<>"']/g;
const htmlEntities: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

/** Safe in element content and in attribute values of either quote. */
export function escapeHtml(text: string): string {
  return htmlSpecial.test(text)
    ? text.replace(htmlSpecials, (special) => htmlEntities[special] ?? special)
    : text;
}

/** Safe in an attribute value without quotes too, which white space would end (HTML standard, 13.1.2.3). */
function escapeUnquoted(text: string): string {
  return text.replace(/[&<>"'`=\s]/g, (special) => `&#${special.charCodeAt(0)};`);
}

const openingBrace = 0x7b;
const closingBrace = 0x7d;

function skipBraces(text: string, start: number, brace: number, countMax: number): number {
  let position = start;
  while (position - start < countMax && text.charCodeAt(position) === brace) position += 1;
  return position;
}

function skipBlanks(text: string, start: number): number {
  let position = start;
  while (text.charCodeAt(position) === 0x20 || text.charCodeAt(position) === 0x09) position += 1;
  return position;
}

function skipName(text: string, start: number): number {
  if (!isNameStart(text.charCodeAt(start))) return start;
  let position = start + 1;
  while (isNamePart(text.charCodeAt(position))) position += 1;
  return position;
}

function isNameStart(code: number): boolean {
  return (code >= 0x41 && code <= 0x5a) || (code >= 0x61 && code <= 0x7a) || code === 0x5f;
}

function isNamePart(code: number): boolean {
  return isNameStart(code) || (code >= 0x30 && code <= 0x39) || code === 0x2e;
}
