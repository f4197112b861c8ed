/**
 * Transparency of a message's content (RFC 5321 §4.5.2): a line that begins with a dot gets a second one, so that
 * no line of the message can be taken for its end. The content arrives in pieces that may end anywhere, also
 * between CR, LF and the dot, so the state between two pieces is a value.
 */

/** How much of a line end stands directly before the next octet. */
export type LineState = 'within_line' | 'after_cr' | 'at_line_start';

const carriageReturn = 0x0d;
const lineFeed = 0x0a;
const dot = 0x2e;
const lineEndAndDot = Buffer.from('\r\n.');

export function lineStateAfter(piece: Uint8Array, before: LineState): LineState {
  if (piece.length === 0) return before;
  const last = piece[piece.length - 1];
  if (last === carriageReturn) return 'after_cr';
  if (last !== lineFeed) return 'within_line';
  const isAfterCarriageReturn =
    piece.length > 1 ? piece[piece.length - 2] === carriageReturn : before === 'after_cr';
  return isAfterCarriageReturn ? 'at_line_start' : 'within_line';
}

/** The piece as it goes over the wire: itself, uncopied, unless a line in it begins with a dot. */
export function stuffDots(piece: Buffer, before: LineState): Buffer {
  const leading = leadingDotAt(piece, before);
  const first = leading === -1 ? piece.indexOf(lineEndAndDot) : -1;
  if (leading === -1 && first === -1) return piece;

  // Every stuffed dot but a leading one follows a CRLF of this piece, so there is at most one in three octets.
  const stuffed = Buffer.allocUnsafe(piece.length + Math.ceil(piece.length / 3) + 1);
  let from = 0;
  let length = 0;
  let dotAt = leading === -1 ? first + 2 : leading;
  while (dotAt !== -1) {
    // Up to and with the dot; the next run begins with the same dot again.
    length += piece.copy(stuffed, length, from, dotAt + 1);
    from = dotAt;
    const next = piece.indexOf(lineEndAndDot, dotAt + 1);
    dotAt = next === -1 ? -1 : next + 2;
  }
  length += piece.copy(stuffed, length, from);
  return stuffed.subarray(0, length);
}

/** The position of a dot whose line end came, at least in part, with an earlier piece; -1 if there is none. */
function leadingDotAt(piece: Buffer, before: LineState): number {
  if (before === 'at_line_start' && piece[0] === dot) return 0;
  if (before === 'after_cr' && piece[0] === lineFeed && piece[1] === dot) return 1;
  return -1;
}
