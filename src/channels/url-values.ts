/**
 * What a value becomes in a URL that a template's author wrote around it (RFC 3986; URL standard). Whatever the value, it
 * stays in its part of the URL: it cannot end a query, add a parameter, name another host, or bring a scheme that runs
 * code.
 */

/** The parts of a URL that a placeholder may stand in. */
export type UrlPart =
  /** The whole URL. */
  | 'whole'
  /** Its beginning, which the author goes on from. */
  | 'base'
  /** All or some of the scheme. */
  | 'scheme'
  | 'host'
  /** Just after a host that is written out: the rest of its name, or a path. */
  | 'host_end'
  /** Where a colon would end a scheme, and an at sign a user's name. */
  | 'relative'
  | 'path'
  /** Of a query or a fragment. */
  | 'component';

const encoders: Readonly<Record<UrlPart, (value: string) => string>> = {
  whole: (value) => readWhole(value) ?? '',
  // What follows is a fragment then, and not a URL of its own.
  base: (value) => readWhole(value) ?? '#',
  scheme: (value) => (/^(?:https?|mailto|tel|s)?$/i.test(value) ? value : ''),
  host: (value) => encode(value, /[^A-Za-z0-9._~:-]+/g),
  host_end: (value) => (value.startsWith('/') ? encodePath(value) : encode(value, /[^A-Za-z0-9._~:-]+/g)),
  relative: (value) => encodePath(value).replace(/[:@]/g, encodeURIComponent),
  path: encodePath,
  component: encodeComponent,
};

/** What stands for a value in that part of a URL; never longer than nine times the value, or one character. */
export function encodeUrlValue(part: UrlPart, value: string): string {
  return unreserved.test(value) && !decidesUrl.has(part) ? value : encoders[part](value);
}

/** RFC 3986 §2.3: these mean themselves wherever they stand. Most values have no others, and are not to be taken apart. */
const unreserved = /^[A-Za-z0-9._~-]*$/;
/** Parts where a value that means itself may still be none that is allowed. */
const decidesUrl: ReadonlySet<UrlPart> = new Set(['whole', 'base', 'scheme']);

/** RFC 3986 §3.3: what is encoded already stays so. A question mark or a number sign would end the path. */
function encodePath(value: string): string {
  return encode(value, /[^A-Za-z0-9._~!$&'()*+,;=:@/%-]+|%(?![0-9A-Fa-f]{2})/g);
}

function encode(value: string, others: RegExp): string {
  return value.toWellFormed().replace(others, encodeComponent);
}

function encodeComponent(text: string): string {
  // RFC 3986 reserves these, and encodeURIComponent leaves them.
  return encodeURIComponent(text.toWellFormed()).replace(
    /[!'()*]/g,
    (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`,
  );
}

/** `cid` is a file of the email itself. */
const allowedScheme = /^(?:https?|mailto|tel|cid):/i;

/** Null where it is no URL of these schemes. It is read as browsers do (URL standard, 4.4), and cannot be cut in two. */
function readWhole(value: string): string | null {
  const url = trimAsBrowsers(value);
  return allowedScheme.test(url) ? encode(url, /[\0-\x20"<>`\x7f]+/g) : null;
}

const space = 0x20;

/** No control characters or spaces around it, and no tabs and line ends in it. */
export function trimAsBrowsers(value: string): string {
  let start = 0;
  let end = value.length;
  // A pattern that is anchored to the end would try anew at every space.
  while (start < end && value.charCodeAt(start) <= space) start += 1;
  while (end > start && value.charCodeAt(end - 1) <= space) end -= 1;
  return value.slice(start, end).replace(/[\t\r\n]+/g, '');
}
