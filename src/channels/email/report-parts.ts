import { Parser } from 'htmlparser2';
import { decodeText, decodeTransfer, mediaTypeOf, readParameter, splitAtBoundary } from './mime-parts.ts';

/**
 * A message as far as a report needs it: its header, the words for people, and its other parts, decoded.
 *
 * A parser of our own, because anyone may send anything to be read here: the general one took ten seconds and 450 MB
 * for 256 kB of empty lines (postal-mime 4.0, measured), and rejects what is nested too deeply. This one never fails.
 * It goes over the source once for each level, and what it does not understand it takes as text.
 */

export type MailParts = {
  /** The first value of each field of the header, unfolded, by its name in lower case. */
  fields: ReadonlyMap<string, string>;
  /** What people read: plain text, or else HTML as text. */
  text: string;
  /** Everything else in its order, a returned message among it, which is never looked into. */
  others: readonly MailPart[];
};

export type MailPart = {
  /** In lower case, for example `message/delivery-status`. */
  type: string;
  text: string;
};

/** A report has two or three levels, and as many parts. Larger limits only let a sender keep us busy for longer. */
const depthMax = 8;
const partsMax = 32;
const fieldsMax = 500;
const valueCharsMax = 8_000;

/** Reads at most as much as it is given; its caller cuts the source. */
export function readMailParts(source: Uint8Array): MailParts {
  // One character an octet: boundaries are found in it, and texts are made octets again for their charset.
  const { fields, body } = splitHead(Buffer.from(source).toString('latin1'));
  const leaves: Leaf[] = [];
  collectLeaves(fields, body, depthMax, leaves);
  const shown = leaves.filter((leaf) => !leaf.isAttached);
  const plain = shown.filter(({ type }) => type === 'text/plain');
  const html = shown.filter(({ type }) => type === 'text/html');
  return {
    fields,
    text:
      plain.length > 0
        ? plain.map(({ text }) => text).join('\n')
        : html.map(({ text }) => toPlainText(text)).join('\n'),
    others: leaves.filter((leaf) => !plain.includes(leaf) && !html.includes(leaf)),
  };
}

/** Who a mail says it is from, and what about; as untrusted as the rest of it. */
export function readMailHead(source: Uint8Array): { from: string; subject: string } {
  const { fields } = splitHead(Buffer.from(source).toString('latin1'));
  return { from: readWriter(fields.get('from') ?? ''), subject: decodeWords(fields.get('subject') ?? '') };
}

/** The fields of a message that is sent back, as `MailParts` has those of the message itself. */
export function readHeader(text: string): ReadonlyMap<string, string> {
  return splitHead(text.trimStart()).fields;
}

type Leaf = MailPart & { isAttached: boolean };

function collectLeaves(
  fields: ReadonlyMap<string, string>,
  body: string,
  depth: number,
  leaves: Leaf[],
): void {
  const contentType = fields.get('content-type') ?? 'text/plain';
  const type = mediaTypeOf(contentType);
  const boundary = type.startsWith('multipart/') ? readParameter(contentType, 'boundary') : '';
  const bodies = boundary === '' || depth === 0 ? [] : splitAtBoundary(body, boundary, partsMax);
  for (const part of bodies) {
    if (leaves.length >= partsMax) return;
    const split = splitHead(part);
    collectLeaves(split.fields, split.body, depth - 1, leaves);
  }
  if (bodies.length > 0) return;
  leaves.push({
    // A multipart without a part is still read: some announce another boundary than they use.
    type: type.startsWith('multipart/') ? 'text/plain' : type,
    text: decodeText(
      decodeTransfer(body, fields.get('content-transfer-encoding') ?? ''),
      readParameter(contentType, 'charset'),
    ),
    isAttached: /^\s*attachment/i.test(fields.get('content-disposition') ?? ''),
  });
}

/** The header ends at the first empty line; without one, everything is header. */
function splitHead(text: string): { fields: Map<string, string>; body: string } {
  const fields = new Map<string, string>();
  let name: string | null = null;
  let value = '';
  let start = 0;
  while (start < text.length) {
    const end = text.indexOf('\n', start);
    const next = end === -1 ? text.length : end + 1;
    const line = text.slice(start, next).replace(/\r?\n$/, '');
    start = next;
    if (line === '') break;
    if (line.startsWith(' ') || line.startsWith('\t')) {
      if (value.length < valueCharsMax) value += line.slice(0, valueCharsMax);
      continue;
    }
    keepField(fields, name, value);
    const colon = line.slice(0, 100).indexOf(':');
    name = colon < 1 ? null : line.slice(0, colon).trimEnd().toLowerCase();
    value = colon < 1 ? '' : line.slice(colon + 1, colon + 1 + valueCharsMax);
  }
  keepField(fields, name, value);
  return { fields, body: text.slice(start) };
}

function keepField(fields: Map<string, string>, name: string | null, value: string): void {
  if (name === null || fields.size >= fieldsMax || fields.has(name)) return;
  fields.set(name, Buffer.from(value.trim(), 'latin1').toString());
}

/** Elements that begin a line; what stands in the others runs on. */
const blocks: ReadonlySet<string> = new Set([
  'address',
  'blockquote',
  'br',
  'dd',
  'div',
  'dt',
  'h1',
  'h2',
  'h3',
  'h4',
  'hr',
  'li',
  'p',
  'pre',
  'table',
  'td',
  'th',
  'tr',
]);

/** Reading stops after this, since no report is longer. */
const htmlCharsMax = 65_536;

function toPlainText(html: string): string {
  const pieces: string[] = [];
  let hidden = 0;
  const parser = new Parser({
    ontext: (text) => {
      if (hidden === 0) pieces.push(text.replace(/\s+/g, ' '));
    },
    onopentag: (name) => {
      if (name === 'style' || name === 'script' || name === 'title') hidden += 1;
      if (blocks.has(name)) pieces.push('\n');
    },
    onclosetag: (name) => {
      if (name === 'style' || name === 'script' || name === 'title') hidden -= 1;
      if (blocks.has(name)) pieces.push('\n');
    },
  });
  parser.write(html.slice(0, htmlCharsMax));
  parser.end();
  return pieces.join('');
}

const encodedWord = /=\?([\w-]{1,40})(?:\*[\w-]{1,20})?\?([bq])\?([^?\s]{0,200})\?=(?:\s{1,10}(?==\?))?/gi;

/** An unstructured field as text (RFC 2047), at most 1,000 characters of it. */
export function decodeWords(value: string): string {
  return value
    .slice(0, 1_000)
    .replace(encodedWord, (_, charset: string, encoding: string, text: string) =>
      decodeText(
        encoding.toLowerCase() === 'b'
          ? Buffer.from(text, 'base64').toString('latin1')
          : decodeTransfer(text.replaceAll('_', ' '), 'quoted-printable'),
        charset,
      ),
    );
}

/** The address of a field such as `From`, or its words where it has none: of old, mail systems wrote `MAILER-DAEMON`. */
export function readWriter(value: string): string {
  const text = decodeWords(value);
  return (/[^\s<>"'(),;:]{1,64}@[\w.-]{1,255}/.exec(text)?.[0] ?? text).trim();
}
