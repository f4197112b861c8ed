/**
 * The relaxed canonical form of RFC 6376 §3.4: what is signed, so that a relay may change the rest.
 *
 * Of a body (§3.4.4), white space at the ends of lines goes, other runs of it become one space, and empty lines at
 * the end go. It is read in one pass, in chunks that may end anywhere. Blank octets (space, tab, CR, LF) at the end
 * of what was read are withheld until the text that follows says what becomes of them: they are some line ends, then
 * perhaps a space, then perhaps a CR that may yet turn out to be half of a line end. Only CR and LF together end a
 * line; one without the other is text.
 */
import { type Hash, createHash } from 'node:crypto';
import { runAtOnce, stepBytesMax, type Steps } from '../../platform/steps.ts';

const tab = 0x09;
const lineFeed = 0x0a;
const carriageReturn = 0x0d;
const space = 0x20;

type Canon = {
  hash: Hash;
  /** What is written and not hashed yet. */
  block: Buffer;
  blockBytes: number;
  isEmpty: boolean;
  /** Withheld, in this order. */
  lineEnds: number;
  hasSpace: boolean;
  hasReturn: boolean;
};

/**
 * The text of a page that is canonical already is hashed where it lies. Smaller pages would cost more calls than they
 * save; in larger ones a single tab sends more octets down the slow path.
 */
const pageBytes = 8_192;

/** Octets that are put together for one call of the hash, which costs as much as hashing 500 of them. */
const blockBytesMax = 2 * pageBytes;

/**
 * SHA-256 in base64 of the relaxed canonical form of a body: of nothing if there is no text in it. Measured where
 * SHA-256 by itself takes 0.65 ms a megabyte: base64 takes 0.9 ms, prose 1.7 ms, indented lines 4 ms, and what is
 * made to take long, such as line ends only, 7 ms.
 */
export function digestBody(body: readonly Uint8Array[]): string {
  return runAtOnce(digestBodyInSteps(body));
}

/** The same in steps. */
export function* digestBodyInSteps(body: readonly Uint8Array[]): Steps<string> {
  const canon: Canon = {
    hash: createHash('sha256'),
    block: Buffer.allocUnsafe(blockBytesMax),
    blockBytes: 0,
    isEmpty: true,
    lineEnds: 0,
    hasSpace: false,
    hasReturn: false,
  };
  for (const chunk of body) {
    for (let at = 0; at < chunk.length; at += pageBytes) {
      if (at > 0 && at % stepBytesMax === 0) yield;
      const length = Math.min(pageBytes, chunk.length - at);
      addPage(canon, Buffer.from(chunk.buffer, chunk.byteOffset + at, length));
    }
  }
  // A lone CR is text, also at the very end; all else that is withheld amounts to one line end.
  if (canon.hasReturn) writeWithheld(canon);
  if (!canon.isEmpty) writeLineEnds(canon, 1);
  flushBlock(canon);
  return canon.hash.digest('base64');
}

/**
 * Text with its white space reduced line by line, which is the relaxed canonical form but for empty lines at the end
 * of a body. White space at the end of the text itself is left.
 */
export function reduceLines(text: string): string {
  if (!hasRuns(text) && !text.includes(' \r\n')) return text;
  return text.replace(/[\t ]+/g, ' ').replaceAll(' \r\n', '\r\n');
}

/** `digestBody` of a body that ends in CRLF, and whose lines are reduced already. */
export function digestReducedBody(body: readonly Uint8Array[]): string {
  const last = body.at(-1);
  const textEnd = last === undefined ? 0 : findEmptyLines(last);
  // Empty lines in front of its last chunk are to go as well.
  if (last === undefined || textEnd === 0) return digestBody(body);
  const hash = createHash('sha256');
  for (const chunk of body.slice(0, -1)) hash.update(chunk);
  return hash.update(last.subarray(0, textEnd + 2)).digest('base64');
}

/** Where line ends begin of which there is nothing but more up to the end. */
function findEmptyLines(chunk: Uint8Array): number {
  let at = chunk.length;
  while (chunk[at - 1] === lineFeed && chunk[at - 2] === carriageReturn) at -= 2;
  return at;
}

function addPage(canon: Canon, page: Buffer): void {
  const from = withholdBlanks(canon, page, 0);
  if (from === page.length) return;
  const to = findLastText(page, from) + 1;
  writeWithheld(canon);
  writeText(canon, page.subarray(from, to));
  withholdBlanks(canon, page, to);
}

/** Reads as many blanks as there are, and says where they end. An LF alone is text, and a CR that no LF follows. */
function withholdBlanks(canon: Canon, page: Buffer, from: number): number {
  for (let at = from; at < page.length; at += 1) {
    const octet = page[at];
    if (octet === lineFeed && canon.hasReturn) {
      canon.lineEnds += 1;
      canon.hasSpace = false;
      canon.hasReturn = false;
    } else if (octet === space || octet === tab) {
      if (canon.hasReturn) writeWithheld(canon);
      canon.hasSpace = true;
    } else if (octet === carriageReturn) {
      if (canon.hasReturn) writeWithheld(canon);
      canon.hasReturn = true;
    } else {
      return at;
    }
  }
  return page.length;
}

/** The last octet of the page that is no blank, or `from`. */
function findLastText(page: Buffer, from: number): number {
  for (let at = page.length - 1; at > from; at -= 1) {
    const octet = page[at] ?? 0;
    const isAlone = octet === lineFeed && page[at - 1] !== carriageReturn;
    if (isAlone || !isBlank(octet)) return at;
  }
  return from;
}

function isBlank(octet: number): boolean {
  return isWhite(octet) || octet === carriageReturn || octet === lineFeed;
}

/** Text that neither begins nor ends with a blank, at most a page of it. */
function writeText(canon: Canon, text: Buffer): void {
  if (!isCanonical(text)) {
    writeReduced(canon, text);
    return;
  }
  flushBlock(canon);
  canon.hash.update(text);
}

function isCanonical(text: Buffer): boolean {
  if (text.includes(tab)) return false;
  return !text.includes(space) || !/ [ \r]/.test(text.toString('latin1'));
}

/** Writes each octet as it comes, and takes a space back when a line end follows it. */
function writeReduced(canon: Canon, text: Buffer): void {
  if (canon.blockBytes + text.length > blockBytesMax) flushBlock(canon);
  const { block } = canon;
  let end = canon.blockBytes;
  for (let at = 0; at < text.length; at += 1) {
    const octet = text[at] ?? 0;
    if (octet <= space) {
      const before = text[at - 1] ?? 0;
      if (isWhite(octet) && isWhite(before)) continue;
      if (octet === lineFeed && before === carriageReturn && block[end - 2] === space) {
        end -= 1;
        block[end - 1] = carriageReturn;
      }
    }
    block[end] = octet === tab ? space : octet;
    end += 1;
  }
  canon.blockBytes = end;
}

function isWhite(octet: number): boolean {
  return octet === space || octet === tab;
}

/** What is withheld as it stands in front of text. */
function writeWithheld(canon: Canon): void {
  canon.isEmpty = false;
  if (canon.lineEnds > 0) writeLineEnds(canon, canon.lineEnds);
  if (canon.hasSpace) writeOctet(canon, space);
  if (canon.hasReturn) writeOctet(canon, carriageReturn);
  canon.lineEnds = 0;
  canon.hasSpace = false;
  canon.hasReturn = false;
}

function writeLineEnds(canon: Canon, count: number): void {
  for (let written = 0; written < count; written += 1) {
    writeOctet(canon, carriageReturn);
    writeOctet(canon, lineFeed);
  }
}

function writeOctet(canon: Canon, octet: number): void {
  if (canon.blockBytes === blockBytesMax) flushBlock(canon);
  canon.block[canon.blockBytes] = octet;
  canon.blockBytes += 1;
}

function flushBlock(canon: Canon): void {
  if (canon.blockBytes > 0) canon.hash.update(canon.block.subarray(0, canon.blockBytes));
  canon.blockBytes = 0;
}

/** One field of a header: its name in lower case, and the whole of it in canonical form, without its CRLF. */
export type CanonicalField = { name: string; text: string };

/** The fields of a header that was written by headers.ts, in their order (§3.4.2). Throws if one has no name. */
export function canonicaliseHeader(header: string): CanonicalField[] {
  const fields: CanonicalField[] = [];
  let start = 0;
  // Ends with the text: every round takes two octets or more of it.
  while (start < header.length) {
    const end = findFieldEnd(header, start);
    if (end > start) fields.push(canonicaliseField(header.slice(start, end)));
    start = end + 2;
  }
  return fields;
}

/** A line end, unless what follows it is white space. */
function findFieldEnd(header: string, start: number): number {
  let end = header.indexOf('\r\n', start);
  while (end !== -1 && isWhite(header.charCodeAt(end + 2))) end = header.indexOf('\r\n', end + 2);
  return end === -1 ? header.length : end;
}

function canonicaliseField(field: string): CanonicalField {
  const colon = field.indexOf(':');
  if (colon < 1) throw new Error('a header field without a name');
  const name = reduceWhiteSpace(field.slice(0, colon)).toLowerCase();
  return { name, text: `${name}:${reduceWhiteSpace(field.slice(colon + 1).replaceAll('\r\n', ''))}` };
}

/** Runs of spaces and tabs become one space, and go at both ends. */
export function reduceWhiteSpace(text: string): string {
  const reduced = hasRuns(text) ? text.replace(/[\t ]+/g, ' ') : text;
  const end = reduced.endsWith(' ') ? reduced.length - 1 : reduced.length;
  return reduced.slice(reduced.startsWith(' ') ? 1 : 0, end);
}

/** Asked first, since most text has none and replacing costs ten times as much. */
function hasRuns(text: string): boolean {
  return text.includes('  ') || text.includes('\t');
}

/**
 * Positions of the fields that these names stand for when they are signed. Of several fields with one name the lowest
 * is taken first, and a name for which none is left stands for nothing (§5.4.2).
 */
export function selectFields(present: readonly string[], names: readonly string[]): number[] {
  const left = new Map<string, number[]>();
  for (const [index, name] of present.entries()) {
    const others = left.get(name);
    if (others === undefined) left.set(name, [index]);
    else others.push(index);
  }
  return names.map((name) => left.get(name)?.pop()).filter((index) => index !== undefined);
}
