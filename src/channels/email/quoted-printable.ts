/**
 * Quoted-printable (RFC 2045 §6.7). Every call begins at the start of a line, so that parts which were encoded one
 * by one can be joined with soft line breaks between them.
 */

/** RFC 2045 §6.7 (5): 76 characters with the `=` of a soft line break. */
const lineLengthMax = 76;

export const softBreak = '=\r\n';

/** Short, printable and nothing that a line must not begin or end with: such text is its own encoding. */
const plainPattern = /^(?!\.|From )[ -<>-~]{0,74}[!-<>-~]$/;

const printablePattern = /^[\t\r\n -~]*$/;

const hexDigits = Buffer.from('0123456789ABCDEF');

const tab = 0x09;
const lineFeed = 0x0a;
const carriageReturn = 0x0d;
const space = 0x20;
const dot = 0x2e;
const equals = 0x3d;
const letterF = 0x46;

/** How many characters each byte takes; 0 for line ends. */
const widths = Uint8Array.from({ length: 256 }, (_, byte) => {
  if (byte === carriageReturn || byte === lineFeed) return 0;
  return byte === tab || (byte >= space && byte <= 0x7e && byte !== equals) ? 1 : 3;
});

/**
 * Encodes text as UTF-8. Line ends must be CRLF (`normaliseLineEnds`) and stay line ends. A dot or `From ` at the
 * start of a line is encoded, because relays alter them, and so is a space or tab at the end of one or of the text.
 */
export function encodeQuotedPrintable(text: string): string {
  if (text === '' || plainPattern.test(text)) return text;
  return printablePattern.test(text)
    ? text.split('\r\n').map(encodeLine).join('\r\n')
    : encodeBytes(Buffer.from(text));
}

/**
 * Encodes a line of printable ASCII by copying runs of what stands for itself: 10 kB of text take 13 µs, where
 * `encodeBytes` takes 52; 16 kB full of tags 65 instead of 104.
 */
function encodeLine(line: string): string {
  if (line === '' || plainPattern.test(line)) return line;
  const blankAt = /[\t ]$/.test(line) ? line.length - 1 : line.length;
  let encoded = '';
  let column = 0;
  let index = 0;
  let escapedAt = findEscaped(line, 0, blankAt);
  // Ends because every turn takes a character or more.
  while (index < line.length) {
    if (column + (index === escapedAt ? 3 : 1) >= lineLengthMax) {
      encoded += softBreak;
      column = 0;
    }
    if (index === escapedAt || (column === 0 && isAlteredAtStart(line, index))) {
      encoded += escapes[line.charCodeAt(index)] ?? '';
      column += 3;
      index += 1;
    } else {
      const run = line.slice(index, Math.min(escapedAt, index + lineLengthMax - 1 - column));
      encoded += run;
      column += run.length;
      index += run.length;
    }
    if (escapedAt < index) escapedAt = findEscaped(line, index, blankAt);
  }
  return encoded;
}

const escapes = Array.from(
  { length: 128 },
  (_, byte) => `=${byte.toString(16).toUpperCase().padStart(2, '0')}`,
);

/** The next character that is escaped wherever it stands: an equals sign, or the blank that the line ends in. */
function findEscaped(line: string, from: number, blankAt: number): number {
  const equalsAt = line.indexOf('=', from);
  return equalsAt === -1 ? blankAt : Math.min(equalsAt, blankAt);
}

function isAlteredAtStart(line: string, index: number): boolean {
  return line.charCodeAt(index) === dot || line.startsWith('From ', index);
}

/** Emptied into a string whenever it is nearly full, so that text of any size needs no buffer of its own size. */
const scratch = Buffer.allocUnsafe(16 * 1024);
/** A soft break and an escaped byte. */
const stepLengthMax = 6;

function encodeBytes(bytes: Uint8Array): string {
  let encoded = '';
  let length = 0;
  let column = 0;
  for (let index = 0; index < bytes.length; index += 1) {
    if (length > scratch.length - stepLengthMax) {
      encoded += scratch.toString('latin1', 0, length);
      length = 0;
    }
    const byte = bytes[index] ?? 0;
    let width = widths[byte] ?? 0;
    if (width === 0) {
      scratch[length++] = byte;
      column = 0;
      continue;
    }
    if (byte <= space && isLineEnd(bytes, index + 1)) width = 3;
    if (column + width >= lineLengthMax) {
      scratch[length++] = equals;
      scratch[length++] = carriageReturn;
      scratch[length++] = lineFeed;
      column = 0;
    }
    if (column === 0 && isAlteredAtLineStart(bytes, index)) width = 3;
    if (width === 1) {
      scratch[length++] = byte;
    } else {
      scratch[length++] = equals;
      scratch[length++] = hexDigits[byte >> 4] ?? 0;
      scratch[length++] = hexDigits[byte & 15] ?? 0;
    }
    column += width;
  }
  return encoded + scratch.toString('latin1', 0, length);
}

function isLineEnd(bytes: Uint8Array, index: number): boolean {
  return index === bytes.length || bytes[index] === carriageReturn;
}

const fromWord = Buffer.from('From ');

function isAlteredAtLineStart(bytes: Uint8Array, index: number): boolean {
  if (bytes[index] === dot) return true;
  return bytes[index] === letterF && fromWord.every((byte, offset) => bytes[index + offset] === byte);
}

/** How many bytes of a text take three characters each: what decides between this encoding and base64. */
export function countEscaped(bytes: Uint8Array): number {
  let count = 0;
  for (const byte of bytes) if (widths[byte] === 3) count += 1;
  return count;
}

/** CRLF for every CR LF, lone CR and lone LF (RFC 5321 §2.3.8): lone ones are how one message becomes two. */
export function normaliseLineEnds(text: string): string {
  if (text.includes('\r')) return text.replace(/\r\n?|\n/g, '\r\n');
  return text.includes('\n') ? text.replaceAll('\n', '\r\n') : text;
}
