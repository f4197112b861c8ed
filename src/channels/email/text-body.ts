import { concatInSteps, type Steps } from '../../platform/steps.ts';
import { encodeBase64LinesInSteps } from './base64.ts';
import { encodeAscii, type Piece } from './pieces.ts';
import { countEscaped, encodeQuotedPrintable, normaliseLineEnds, softBreak } from './quoted-printable.ts';

/**
 * The body of a text part, in the encoding that suits its text: as it is, quoted-printable, or base64. Text of any
 * size is cut at its line ends and worked on part by part: 14 MB of line ends took 1.9 s in one piece.
 */
export type TextBody = { encoding: '7bit' | 'quoted-printable' | 'base64'; body: Piece[] };

/** Of empty lines, which cost most, about 5 ms of encoding. */
export const textStepLengthMax = 65_536;

/** Base64 grows text by 35 %, quoted-printable by 200 % of what it escapes: from this share on base64 is smaller. */
const escapedShareMax = 0.175;

/** `stepLengthMax` in UTF-16 units, at least 2. */
export function* encodeTextInSteps(text: string, stepLengthMax = textStepLengthMax): Steps<TextBody> {
  const parts: string[] = [];
  let isPlain = true;
  for (const part of cutAtLineEnds(text, stepLengthMax)) {
    if (parts.length > 0) yield;
    const normalised = normaliseLineEnds(part);
    isPlain &&= isSevenBit(normalised);
    parts.push(normalised);
  }
  if (isPlain) return { encoding: '7bit', body: yield* writeParts(parts, (part) => part) };
  const octets: Buffer[] = [];
  let length = 0;
  let escaped = 0;
  for (const part of parts) {
    yield;
    const bytes = Buffer.from(part);
    octets.push(bytes);
    length += bytes.length;
    escaped += countEscaped(bytes);
  }
  if (escaped > length * escapedShareMax) {
    return { encoding: 'base64', body: yield* encodeBase64LinesInSteps(yield* concatInSteps(octets)) };
  }
  const last = parts.length - 1;
  const body = yield* writeParts(parts, (part, index) => {
    const isLineOpen = index < last && !part.endsWith('\r\n');
    return encodeQuotedPrintable(part) + (isLineOpen ? softBreak : '');
  });
  return { encoding: 'quoted-printable', body };
}

/** Of several parts each becomes its octets at once: a string of all of them would be copied in one piece. */
function* writeParts(
  parts: readonly string[],
  write: (part: string, index: number) => string,
): Steps<Piece[]> {
  const body: Piece[] = [];
  for (const [index, part] of parts.entries()) {
    if (index > 0) yield;
    const written = write(part, index);
    body.push(parts.length > 1 ? encodeAscii(written) : written);
  }
  return body;
}

/** Parts of at most `lengthMax` + 1 UTF-16 units, each the beginning of a line as long as lines are no longer than that. */
function* cutAtLineEnds(text: string, lengthMax: number): Generator<string> {
  let start = 0;
  // Ends because every part has a character or more.
  while (text.length - start > lengthMax) {
    const end = start + findCut(text.slice(start, start + lengthMax), text.charCodeAt(start + lengthMax));
    yield text.slice(start, end);
    start = end;
  }
  yield text.slice(start);
}

const lineFeed = 0x0a;
const carriageReturn = 0x0d;

/** How much of a part to take, so that neither a line end nor a character is cut in two. */
function findCut(part: string, nextCode: number): number {
  const lastCode = part.charCodeAt(part.length - 1);
  if (lastCode === carriageReturn && nextCode === lineFeed) return part.length + 1;
  const lineEnd = Math.max(part.lastIndexOf('\n'), part.lastIndexOf('\r')) + 1;
  if (lineEnd > 0) return lineEnd;
  return isHighSurrogate(lastCode) && part.length > 1 ? part.length - 1 : part.length;
}

function isHighSurrogate(code: number): boolean {
  return code >= 0xd800 && code <= 0xdbff;
}

/**
 * `=_` can't occur in quoted-printable or base64 (RFC 2045 §6.7), and text that holds it is never sent as 7bit: no
 * body can contain a boundary. The rest is for those who look for parts without reading the encodings.
 */
export const boundaryMark = '=_';

/** Whether text with CRLF line ends can be sent as it is (RFC 2045 §2.7), and no relay has a reason to alter it. */
function isSevenBit(text: string): boolean {
  if (!/^[\t\r\n -~]*$/.test(text) || text.includes(boundaryMark)) return false;
  if (text.startsWith('From ') || text.includes('\nFrom ')) return false;
  return hasShortLines(text);
}

/** RFC 5322 §2.1.1. */
const lineLengthMax = 998;

function hasShortLines(text: string): boolean {
  let lineStart = 0;
  // Ends with the text: every round begins a line further on.
  for (;;) {
    const lineEnd = text.indexOf('\r', lineStart);
    if (lineEnd === -1) return text.length - lineStart <= lineLengthMax;
    if (lineEnd - lineStart > lineLengthMax) return false;
    lineStart = lineEnd + 2;
  }
}
