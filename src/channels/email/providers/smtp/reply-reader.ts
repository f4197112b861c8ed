/**
 * Replies of an SMTP server out of a stream of octets (RFC 5321 §4.2). The server is not trusted: it may answer
 * without end, without line ends, or with anything but SMTP, and none of that may cost more than the limits below.
 */

export type SmtpReply = {
  /** 200 to 599. */
  code: number;
  /** Without the codes; the lines of a reply of several lines are joined by LF. */
  text: string;
};

/** Smaller and the EHLO reply of a server with many extensions is refused; larger and a server can fill our memory. */
const replyBytesMax = 8_192;
const replyLinesMax = 100;

const lineFeed = 0x0a;
const carriageReturn = 0x0d;
const space = 0x20;
const hyphen = 0x2d;
const zero = 0x30;

/** Takes the octets as they come; not fit for use after `read` has returned a fault. */
export class SmtpReplyReader {
  #partialLine: Buffer | null = null;
  #earlierLines: string[] = [];
  #earlierCode = 0;
  #replyBytes = 0;

  /** Whether everything read so far has been handed out: nothing of a further reply has arrived. */
  isAtReplyStart(): boolean {
    return this.#partialLine === null && this.#earlierLines.length === 0;
  }

  /** Calls `onReply` for every reply completed by `octets`; returns what is wrong with them, or null. */
  read(octets: Buffer, onReply: (reply: SmtpReply) => void): string | null {
    let from = 0;
    for (let end = octets.indexOf(lineFeed); end !== -1; end = octets.indexOf(lineFeed, from)) {
      const fault = this.#readLine(this.#completeLine(octets, from, end), onReply);
      if (fault !== null) return fault;
      from = end + 1;
    }
    if (from === octets.length) return null;
    // Copied, because the caller may use its buffer again.
    const rest = Buffer.from(octets.subarray(from));
    this.#partialLine = this.#partialLine === null ? rest : Buffer.concat([this.#partialLine, rest]);
    return this.#replyBytes + this.#partialLine.length > replyBytesMax ? 'the reply is too long' : null;
  }

  #completeLine(octets: Buffer, from: number, end: number): Buffer {
    const line = octets.subarray(from, end);
    if (this.#partialLine === null) return line;
    const whole = Buffer.concat([this.#partialLine, line]);
    this.#partialLine = null;
    return whole;
  }

  #readLine(line: Buffer, onReply: (reply: SmtpReply) => void): string | null {
    this.#replyBytes += line.length + 1;
    if (this.#replyBytes > replyBytesMax || this.#earlierLines.length >= replyLinesMax)
      return 'the reply is too long';

    const end = line[line.length - 1] === carriageReturn ? line.length - 1 : line.length;
    const code = codeOf(line, end);
    if (code === null) return 'the reply is not SMTP';
    if (this.#earlierLines.length > 0 && code !== this.#earlierCode)
      return 'the reply changes its code between lines';

    const text = line.toString('utf8', Math.min(4, end), end);
    if (end > 3 && line[3] === hyphen) {
      this.#earlierCode = code;
      this.#earlierLines.push(text);
      return null;
    }
    this.#replyBytes = 0;
    if (this.#earlierLines.length === 0) {
      onReply({ code, text });
      return null;
    }
    this.#earlierLines.push(text);
    const lines = this.#earlierLines;
    this.#earlierLines = [];
    onReply({ code, text: lines.join('\n') });
    return null;
  }
}

/** The three digits before a space, a hyphen or the end of the line; null if that is not what stands there. */
function codeOf(line: Buffer, end: number): number | null {
  if (end < 3 || (end > 3 && line[3] !== space && line[3] !== hyphen)) return null;
  const [hundreds, tens, units] = [digitOf(line[0]), digitOf(line[1]), digitOf(line[2])];
  if (hundreds < 2 || hundreds > 5 || tens < 0 || units < 0) return null;
  return hundreds * 100 + tens * 10 + units;
}

function digitOf(octet: number | undefined): number {
  if (octet === undefined || octet < zero || octet > zero + 9) return -1;
  return octet - zero;
}
