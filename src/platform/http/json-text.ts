/**
 * Reading untrusted JSON. `JSON.parse` is safe in itself; what it lets through is not: a million keys that
 * block all other requests while they are read, strings that PostgreSQL cannot store (NUL, lone surrogates), and keys
 * that reach an object's prototype once they are merged into another object. All of that is refused here, once, at the
 * edge.
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
  const problem = findExcessiveStructure(bytes, limits);
  if (problem !== null) return { kind: 'malformed', problem };
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { kind: 'malformed', problem: 'the body is not valid JSON' };
  }
  // NUL and lone surrogates can only come from an escape, dangerous keys only from their own names.
  const isSuspicious = text.includes('\\u') || text.includes('__proto__') || text.includes('constructor');
  return { kind: 'json', value, issues: isSuspicious ? findUnsafeText(value) : [] };
}

const quote = 0x22;
const backslash = 0x5c;
const comma = 0x2c;
const openBracket = 0x5b;
const closeBracket = 0x5d;
const openBrace = 0x7b;
const closeBrace = 0x7d;

/** Counts brackets and commas outside of strings and stops at the limit; strings are skipped natively. */
function findExcessiveStructure(bytes: Buffer, limits: JsonLimits): string | null {
  let depth = 0;
  let values = 0;
  for (let at = 0; at < bytes.length; at += 1) {
    const byte = bytes[at];
    if (byte === quote) {
      at = endOfString(bytes, at);
    } else if (byte === openBrace || byte === openBracket) {
      depth += 1;
      values += 1;
      if (depth > limits.depthMax) return `the body is nested deeper than ${limits.depthMax} levels`;
    } else if (byte === closeBrace || byte === closeBracket) {
      depth -= 1;
    } else if (byte === comma) {
      values += 1;
    }
    if (values > limits.valuesMax) return `the body has more than ${limits.valuesMax} values`;
  }
  return null;
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

function findUnsafeText(root: unknown): string[] {
  const issues: string[] = [];
  const visit = (value: unknown, path: string) => {
    if (issues.length >= issuesMax) return;
    if (typeof value === 'string') {
      if (!isStorableText(value))
        issues.push(`${path || 'the body'} must not contain NUL or unpaired surrogates`);
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
