import type { TSchema } from 'typebox';
import { wordFor } from '../wording.ts';
import { showKey } from './json-text.ts';

/**
 * What may be kept of a request that somebody will look at later: what its schema says of each field, and no more. A field
 * that is marked `sensitive` is told by its kind and size alone, and so is what no schema describes. A field that the schema
 * does not know is left out: it may be anything. Addresses and numbers of people, which a text may have anywhere, are
 * masked in whatever is shown.
 *
 * It costs what is kept, and not what was sent: of lists, names and long texts only the beginning is read.
 */

/** What is read of a JSON Schema. */
type Shape = {
  type?: string | readonly string[];
  format?: string;
  sensitive?: boolean;
  properties?: Readonly<Record<string, Shape>>;
  patternProperties?: Readonly<Record<string, Shape>>;
  additionalProperties?: boolean | Shape;
  items?: Shape;
  anyOf?: readonly Shape[];
  enum?: readonly unknown[];
  const?: unknown;
};

export const redactedBytesMax = 8_192;
/** Of a list, and of names that are free. */
const membersMax = 20;
const charactersMax = 200;
const depthMax = 10;

/** JSON of at most `redactedBytesMax`; null where nothing was sent, or nothing is left of it. */
export function redact(schema: TSchema, value: unknown): string | null {
  if (value === undefined) return null;
  const text = write([schema], value, { room: redactedBytesMax, depth: 0 });
  return text === '{}' ? null : text;
}

type Place = { room: number; depth: number };

/** `shapes` are all that may describe the value. Null where there is no room for it. */
function write(shapes: readonly Shape[], value: unknown, { room, depth }: Place): string | null {
  const all = shapes.flatMap(withAlternatives);
  const below = depth + 1;
  const isShown = depth < depthMax && !all.some(({ sensitive }) => sensitive === true);
  if (isShown && Array.isArray(value)) {
    const items = all.flatMap(({ items: each = null }) => each ?? []);
    if (items.length > 0) return writeList(items, value, { room, depth: below });
  }
  if (isShown && isObject(value)) {
    const objects = all.filter((shape) => fieldsOf(shape) !== null);
    if (objects.length > 0) return writeObject(objects, value, { room, depth: below });
  }
  const text = JSON.stringify(isShown && isDescribed(all) ? showScalar(all, value) : describe(value));
  return Buffer.byteLength(text) <= room ? text : null;
}

function withAlternatives(shape: Shape): readonly Shape[] {
  return shape.anyOf === undefined ? [shape] : [shape, ...shape.anyOf.flatMap(withAlternatives)];
}

/** Whether a schema says anything of values that are neither lists nor objects. */
function isDescribed(shapes: readonly Shape[]): boolean {
  return shapes.some(({ type, ...shape }) => {
    const types = typeof type === 'string' ? [type] : (type ?? []);
    return types.some((each) => each !== 'object' && each !== 'array') || 'enum' in shape || 'const' in shape;
  });
}

/** Null of what is no object. */
function fieldsOf({ properties, patternProperties, additionalProperties }: Shape): {
  named: Readonly<Record<string, Shape>>;
  others: readonly Shape[];
} | null {
  const others = [
    ...Object.values(patternProperties ?? {}),
    ...(typeof additionalProperties === 'object' ? [additionalProperties] : []),
  ];
  return properties === undefined && others.length === 0 ? null : { named: properties ?? {}, others };
}

/** Of brackets, and of what is said of members that are left out. */
const marginBytes = 40;

function writeList(
  items: readonly Shape[],
  values: readonly unknown[],
  { room, depth }: Place,
): string | null {
  if (room < marginBytes) return null;
  const written: string[] = [];
  let left = room - marginBytes;
  for (const value of values.slice(0, membersMax)) {
    const item = write(items, value, { room: left, depth });
    if (item === null) break;
    written.push(item);
    left -= Buffer.byteLength(item) + 1;
  }
  const more = values.length - written.length;
  if (more > 0) written.push(JSON.stringify(`[${more} more]`));
  return `[${written.join(',')}]`;
}

/** What does not fit ends it: if the members after it were tried as well, each within each, there would be no end of trying. */
function writeObject(
  shapes: readonly Shape[],
  value: Readonly<Record<string, unknown>>,
  { room, depth }: Place,
): string | null {
  if (room < marginBytes) return null;
  const fields = shapes.flatMap((shape) => fieldsOf(shape) ?? []);
  const known = [...new Set(fields.flatMap(({ named }) => Object.keys(named)))].filter(
    (name) => Object.hasOwn(value, name) && value[name] !== undefined,
  );
  const free = fields.some(({ others }) => others.length > 0) ? takeNames(value, new Set(known)) : [];
  const written: string[] = [];
  let left = room - marginBytes;
  for (const name of [...known, ...free]) {
    const of = fields.flatMap(({ named, others }) =>
      Object.hasOwn(named, name) ? (named[name] ?? []) : others,
    );
    const key = `${JSON.stringify(maskText(showKey(name)))}:`;
    left -= Buffer.byteLength(key) + 1;
    const member = write(of, value[name], { room: left, depth });
    if (member === null) break;
    written.push(`${key}${member}`);
    left -= Buffer.byteLength(member);
  }
  const more = known.length + free.length - written.length;
  if (more > 0) written.push(`"…":${JSON.stringify(`[${more} more]`)}`);
  return `{${written.join(',')}}`;
}

/** The first of them: a body may have a million. */
function takeNames(value: Readonly<Record<string, unknown>>, but: ReadonlySet<string>): string[] {
  const names: string[] = [];
  for (const name in value) {
    if (!but.has(name)) names.push(name);
    if (names.length === membersMax) break;
  }
  return names;
}

function showScalar(shapes: readonly Shape[], value: unknown): unknown {
  const isOf = (...formats: string[]) => shapes.some(({ format = '' }) => formats.includes(format));
  const isNumber = isOf('phone-number');
  const isAddress = isOf('email', 'idn-email', 'named-email', 'named-idn-email');
  if (typeof value !== 'string') {
    const isLong = typeof value === 'object' && value !== null;
    return isLong || isNumber || isAddress ? describe(value) : value;
  }
  const text = value.length > charactersMax ? `${value.slice(0, charactersMax)}…` : value;
  // What was meant for an address is one, however it is written.
  if (isNumber) return maskNumber(text);
  if (isAddress) return maskAddress(text);
  return value.length > charactersMax ? `${maskText(text)} [${value.length} characters]` : maskText(text);
}

function describe(value: unknown): string | null {
  if (value === null) return null;
  if (typeof value === 'string') return describeText(value);
  if (value instanceof Uint8Array) return `[${value.length} ${wordFor(value.length, 'byte')}]`;
  if (Array.isArray(value)) return `[${value.length} ${wordFor(value.length, 'item')}]`;
  return `[${typeof value}]`;
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return (
    typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array)
  );
}

/** Its domain says what mostly matters of an address. */
function maskAddress(text: string): string {
  const domain = /@([\p{L}\p{N}.-]{1,253})/u.exec(text)?.[1];
  return domain === undefined ? describeText(text) : `…@${domain}`;
}

function maskNumber(text: string): string {
  const digits = /^\+?([0-9]{2})[0-9]{4,13}$/.exec(text)?.[1];
  return digits === undefined ? describeText(text) : `+${digits}…`;
}

function describeText(text: string): string {
  return `[${text.length} ${wordFor(text.length, 'character')}]`;
}

/**
 * A text without the addresses, numbers and API keys in it, and as PostgreSQL can store it. Names before an `@` are looked
 * at up to a limit, so that no text takes long.
 */
export function maskText(text: string): string {
  return text
    .replace(/pst_[A-Za-z0-9_-]{8,}/g, 'pst_…')
    .replace(/[^\s@<>"',;:()[\]]{1,64}(?=@)/gu, '…')
    .replace(/\+[0-9]{2}[0-9]{5,13}/g, (number) => `${number.slice(0, 3)}…`)
    .replaceAll('\0', '\ufffd')
    .toWellFormed();
}
