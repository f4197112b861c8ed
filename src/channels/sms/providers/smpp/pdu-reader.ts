import { headerBytes, readPdu } from './pdu.ts';
import type { Pdu } from './pdu.ts';

/** §5.3.2.32: a message_payload may have 64 kB. More than this is no PDU, and would let a peer fill our memory. */
export const pduBytesMax = 65_536;

/** Cuts the octets of a connection into PDUs, however they were cut on their way. */
export class PduReader {
  #chunks: Buffer[] = [];
  #bufferedBytes = 0;
  /** Nothing can be cut before this many octets are there. */
  #neededBytes = headerBytes;

  /**
   * Hands over every PDU that is whole by now. Returns null, or why this is not SMPP; nothing can be read after that,
   * since it is not known where the next PDU begins.
   */
  read(chunk: Buffer, onPdu: (pdu: Pdu) => void): string | null {
    this.#chunks.push(chunk);
    this.#bufferedBytes += chunk.length;
    if (this.#bufferedBytes < this.#neededBytes) return null;
    const [only] = this.#chunks;
    const octets = this.#chunks.length === 1 && only !== undefined ? only : Buffer.concat(this.#chunks);
    let at = 0;
    this.#neededBytes = headerBytes;
    while (octets.length - at >= headerBytes) {
      const length = octets.readUInt32BE(at);
      if (length < headerBytes || length > pduBytesMax) return `a PDU cannot have ${length} octets`;
      if (octets.length - at < length) {
        this.#neededBytes = length;
        break;
      }
      onPdu(readPdu(octets.subarray(at, at + length)));
      at += length;
    }
    this.#chunks = at === octets.length ? [] : [octets.subarray(at)];
    this.#bufferedBytes = octets.length - at;
    return null;
  }
}
