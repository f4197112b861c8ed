/**
 * Reading untrusted JSON. `JSON.parse` is safe in itself; what it lets through is not: a million keys that
 * block all other requests while they are read, strings that PostgreSQL cannot store (NUL, lone surrogates), numbers that
 * it writes with hundreds of digits, and keys that reach an object's prototype once they are merged into another object.
 * All of that is refused here, once, at the edge.
 */

/** How much structure a body may have. Text of any length is one value. */
export type JsonLimits = { depthMax: number; valuesMax: number };

/** Far above what any route needs, and still only milliseconds of work. */
export const defaultJsonLimits: JsonLimits = { depthMax: 32, valuesMax: 50_000 };

export type JsonReading =
  { kind: 'json'; value: unknown; issues: string[] } | { kind: 'malformed'; problem: string };

/**
 * Parses a body. `issues` are those of the text itself (see above), each with the path of its field; what the
 * route's schema says comes later.
 */
export function readJson(bytes: Buffer, text: string, limits: JsonLimits): JsonReading {
  const structure = examineStructure(bytes, limits);
  if (structure.problem !== null) return { kind: 'malformed', problem: structure.problem };
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { kind: 'malformed', problem: 'the body is not valid JSON' };
  }
  // NUL and lone surrogates can only come from an escape, dangerous keys only from their own names.
  const isSuspicious =
    structure.hasUnusualNumber ||
    text.includes('\\u') ||
    text.includes('__proto__') ||
    text.includes('constructor');
  return { kind: 'json', value, issues: isSuspicious ? findUnstorableValues(value) : [] };
}

const quote = 0x22;
const backslash = 0x5c;
const comma = 0x2c;
const openBracket = 0x5b;
const closeBracket = 0x5d;
const openBrace = 0x7b;
const closeBrace = 0x7d;

const zero = 0x30;
const nine = 0x39;

/** A number with fewer characters and no exponent is far from the limits of `isStorableNumber`. */
const usualNumberLengthMax = 20;

type Structure = { problem: string | null; hasUnusualNumber: boolean };

/** Counts brackets and commas outside of strings and stops at the limit; strings are skipped natively. */
function examineStructure(bytes: Buffer, limits: JsonLimits): Structure {
  let depth = 0;
  let values = 0;
  let hasUnusualNumber = false;
  const excess = (problem: string): Structure => ({ problem, hasUnusualNumber });
  for (let at = 0; at < bytes.length; at += 1) {
    const byte = bytes[at] ?? 0;
    if (byte === quote) {
      at = endOfString(bytes, at);
    } else if (byte === openBrace || byte === openBracket) {
      depth += 1;
      values += 1;
      if (depth > limits.depthMax) return excess(`the body is nested deeper than ${limits.depthMax} levels`);
    } else if (byte === closeBrace || byte === closeBracket) {
      depth -= 1;
    } else if (byte === comma) {
      values += 1;
    } else if (byte >= zero && byte <= nine) {
      const end = endOfDigits(bytes, at);
      hasUnusualNumber ||= end - at > usualNumberLengthMax || isExponent(bytes[end]);
      at = end - 1;
    }
    if (values > limits.valuesMax) return excess(`the body has more than ${limits.valuesMax} values`);
  }
  return { problem: null, hasUnusualNumber };
}

const point = 0x2e;

/** The position after the digits from `start` on, with the point among them. */
function endOfDigits(bytes: Buffer, start: number): number {
  let end = start + 1;
  for (;;) {
    const byte = bytes[end] ?? 0;
    if (byte !== point && (byte < zero || byte > nine)) return end;
    end += 1;
  }
}

function isExponent(byte: number | undefined): boolean {
  return byte === 0x65 || byte === 0x45;
}

/** The position of the quote that ends the string starting at `start`, or the end of the bytes. */
function endOfString(bytes: Buffer, start: number): number {
  let end = bytes.indexOf(quote, start + 1);
  while (end !== -1) {
    let backslashes = 0;
    while (bytes[end - 1 - backslashes] === backslash) backslashes += 1;
    if (backslashes % 2 === 0) return end;
    end = bytes.indexOf(quote, end + 1);
  }
  return bytes.length;
}

/** More issues than this do not help, and the list is sent back to the client. */
const issuesMax = 50;

export function findUnstorableValues(root: unknown): string[] {
  const issues: string[] = [];
  const visit = (value: unknown, path: string) => {
    if (issues.length >= issuesMax) return;
    if (typeof value === 'string') {
      if (!isStorableText(value))
        issues.push(`${path || 'the body'} must not contain NUL or unpaired surrogates`);
    } else if (typeof value === 'number') {
      if (!isStorableNumber(value)) issues.push(`${path || 'the body'} must be ${storableNumber}`);
    } else if (Array.isArray(value)) {
      value.forEach((item, index) => {
        visit(item, `${path}[${index}]`);
      });
    } else if (typeof value === 'object' && value !== null) {
      for (const [key, item] of Object.entries(value)) {
        const below = path === '' ? showKey(key) : `${path}.${showKey(key)}`;
        if (!isStorableText(key))
          issues.push(`${below} must not contain NUL or unpaired surrogates in its name`);
        if (key === '__proto__' || (key === 'constructor' && isObjectWithPrototype(item))) {
          issues.push(`${below} is not allowed`);
        }
        visit(item, below);
      }
    }
  };
  visit(root, '');
  return issues;
}

function isObjectWithPrototype(value: unknown): boolean {
  return typeof value === 'object' && value !== null && Object.hasOwn(value, 'prototype');
}

/** PostgreSQL's text can hold neither NUL nor half a surrogate pair. */
export function isStorableText(text: string): boolean {
  return !text.includes('\0') && text.isWellFormed();
}

const storableSizeMin = 1e-20;
const storableSizeEnd = 1e30;

/** What a number that is not storable must be. */
export const storableNumber = `0, or in size at least ${storableSizeMin} and below ${storableSizeEnd.toExponential()}`;

/**
 * PostgreSQL's `jsonb` knows no exponents: it would write the six characters of `1e+308` as 309, whenever they are read.
 * Within these limits no number has more than forty. What JSON writes beyond the range of a double is read as infinite.
 */
export function isStorableNumber(value: number): boolean {
  const size = Math.abs(value);
  return size === 0 || (size >= storableSizeMin && size < storableSizeEnd);
}

const keyLengthMax = 60;

/** A client's own key as it may stand in a message: short, and without control characters. */
export function showKey(key: string): string {
  const short = key.length > keyLengthMax ? `${key.slice(0, keyLengthMax)}…` : key;
  return short.replace(/[\p{C}]/gu, '?');
}

/** JSON with sorted keys: equal for equal values, however a client orders them. */
export function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null';
  const members = Object.entries(value)
    .sort(([first], [second]) => (first < second ? -1 : 1))
    .map(([key, item]) => `${JSON.stringify(key)}:${canonicalJson(item)}`);
  return `{${members.join(',')}}`;
}
