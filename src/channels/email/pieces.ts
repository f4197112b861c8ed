import { type CompiledText, type PlacedPlaceholder, type Values, findValue } from '../placeholders.ts';
import { reduceLines } from './dkim-canonical.ts';
import { encodeQuotedPrintable, normaliseLineEnds, softBreak } from './quoted-printable.ts';

/** A literal, already encoded: a string where it is small, its octets where copies share it; or a hole. */
export type Piece = string | Uint8Array | Hole;

export type Hole = {
  placeholder: PlacedPlaceholder;
  /** Between a value and the text that goes on in the same line. */
  separator: string;
  /** The placeholder itself, encoded, for where there is no value. */
  written: string;
  /** The same for all holes that one value goes into in one way; null if there is no other. */
  source: string | null;
};

const tab = 0x09;
const space = 0x20;

/** The pieces of a body, neighbouring literals joined. */
export type CompiledPieces = {
  written: readonly Piece[];
  /** The same with their lines reduced, for the signatures of copies; null if there are none, or no holes. */
  reduced: readonly Piece[] | null;
};

/**
 * Literals from here on are handed out as they are. Smaller ones are copied into each message, which is cheaper than
 * another chunk to write; larger ones would cost memory with every copy.
 */
const sharedBytesMin = 32 * 1024;

/** All values of one copy, encoded. One long value in many placeholders would otherwise fill the memory. */
const personalBytesMax = 8 * 1024 * 1024;

/**
 * Text with placeholders in quoted-printable: each value stands on lines of its own between soft line breaks, and
 * so never changes how the text around it is encoded.
 */
export function compileHoles(text: CompiledText): Piece[] {
  const literals = text.literals.map((literal) => encodeQuotedPrintable(normaliseLineEnds(literal)));
  const pieces: Piece[] = [];
  const sources = text.placeholders.map(
    ({ name, escaped, place: { part, escape } }) => `${part} ${escape} ${escaped} ${name}`,
  );
  const repeated = listRepeated(sources);
  for (const [index, literal] of literals.entries()) {
    const placeholder = text.placeholders[index];
    const isLineStart = literal === '' || literal.endsWith('\r\n');
    pieces.push(placeholder === undefined || isLineStart ? literal : literal + softBreak);
    if (placeholder === undefined) break;
    const next = literals[index + 1] ?? '';
    const isLast = index + 2 === literals.length;
    // Before a line end, and at the end of the text, there is nothing to be kept apart from the value.
    const separator = next.startsWith('\r\n') || (next === '' && isLast) ? '' : softBreak;
    const written = encodeQuotedPrintable(placeholder.written) + separator;
    const source = sources[index] ?? '';
    pieces.push({ placeholder, separator, written, source: repeated.has(source) ? source : null });
  }
  return pieces;
}

function listRepeated(sources: readonly string[]): Set<string> {
  const seen = new Set<string>();
  return new Set(sources.filter((source) => seen.size === seen.add(source).size));
}

/** Neighbouring literals become one, and large ones, or all if there are no holes, become octets to be shared. */
export function joinPieces(pieces: readonly Piece[], { isSigned }: { isSigned: boolean }): CompiledPieces {
  const joined: Piece[] = [];
  for (const piece of pieces) {
    const last = joined.at(-1);
    if (typeof piece === 'string' && typeof last === 'string') joined[joined.length - 1] = last + piece;
    else joined.push(piece);
  }
  const hasHoles = joined.some(isHole);
  const written = joined.map((piece) => shareLarge(piece, hasHoles ? sharedBytesMin : 0));
  return { written, reduced: hasHoles && isSigned ? written.map(reducePiece) : null };
}

function shareLarge(piece: Piece, sharedMin: number): Piece {
  return typeof piece === 'string' && piece.length >= sharedMin ? encodeAscii(piece) : piece;
}

/**
 * Each by itself: what is in front of another piece ends in a line end or in text, and never in white space, about
 * which the next one would have a say.
 */
function reducePiece(piece: Piece): Piece {
  if (typeof piece === 'string') return reduceLines(piece);
  // Most are files in base64, which are not worth a second copy to look at.
  if (!(piece instanceof Uint8Array) || !(piece.includes(tab) || piece.includes(space))) return piece;
  const text = Buffer.from(piece.buffer, piece.byteOffset, piece.length).toString('latin1');
  const reduced = reduceLines(text);
  return reduced === text ? piece : encodeAscii(reduced);
}

function isHole(piece: Piece): piece is Hole {
  return typeof piece !== 'string' && !(piece instanceof Uint8Array);
}

/** The octets of one copy; reduced, they are the same chunks where nothing had to be. */
export type FilledPieces = { chunks: Uint8Array[]; reducedChunks: Uint8Array[] | null };

/** The octets of one copy, or `too_large` if its values take more than 8 MiB. */
export function fillPieces({ written, reduced }: CompiledPieces, values: Values): FilledPieces | 'too_large' {
  const chunks: Uint8Array[] = [];
  const reducedChunks: Uint8Array[] = [];
  const encode = createValueEncoder(values);
  let text = '';
  // Null as long as it is the same.
  let reducedText: string | null = null;
  let personalBytes = 0;
  const flush = () => {
    if (text === '') return;
    const chunk = encodeAscii(text);
    chunks.push(chunk);
    reducedChunks.push(reducedText === null ? chunk : encodeAscii(reducedText));
    text = '';
    reducedText = null;
  };
  for (const [index, piece] of written.entries()) {
    const literal = reduced?.[index] ?? piece;
    if (piece instanceof Uint8Array) {
      flush();
      chunks.push(piece);
      reducedChunks.push(literal as Uint8Array);
      continue;
    }
    const part = typeof piece === 'string' ? piece : fillHole(piece, encode(piece));
    if (typeof piece !== 'string') {
      personalBytes += part.length;
      if (personalBytes > personalBytesMax) return 'too_large';
    }
    if (reduced !== null) {
      const reducedPart = typeof literal === 'string' ? literal : reduceLines(part);
      if (reducedText !== null) reducedText += reducedPart;
      else if (part !== reducedPart) reducedText = text + reducedPart;
    }
    text += part;
  }
  flush();
  return { chunks, reducedChunks: reduced === null ? null : reducedChunks };
}

function fillHole(hole: Hole, value: string | null): string {
  if (value === null) return hole.written;
  return value === '' ? '' : value + hole.separator;
}

/** Encodes what goes into holes; null where there is no value. A tracked email has one value in each of its links. */
function createValueEncoder(values: Values): (hole: Hole) => string | null {
  const known = new Map<string, string | null>();
  const encode = ({ placeholder }: Hole) => {
    const value = findValue(placeholder, placeholder.place, values);
    return value === null ? null : encodeQuotedPrintable(normaliseLineEnds(value));
  };
  return (hole) => {
    if (hole.source === null) return encode(hole);
    const before = known.get(hole.source);
    if (before !== undefined) return before;
    const encoded = encode(hole);
    known.set(hole.source, encoded);
    return encoded;
  };
}

/** UTF-8 as text with a character for each octet, which is how what leaves beyond ASCII is kept until it leaves. */
export function toOctetText(text: string): string {
  return Buffer.from(text).toString('latin1');
}

/** Octets of text that has a character for each: of ASCII, or of what `toOctetText` made. */
export function encodeAscii(text: string): Uint8Array {
  return Buffer.from(text, 'latin1');
}
