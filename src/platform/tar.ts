/**
 * Archives in the format that every tar reads (POSIX.1-2017, pax, "ustar Interchange Format"), as far as copies of a
 * PostgreSQL need it: files of up to 8 GB and directories, under names of up to 100 bytes.
 */

export type TarEntry = {
  name: string;
  kind: 'file' | 'directory' | 'other';
  sizeBytes: number;
  /** What is not read of it is skipped. */
  content: AsyncIterable<Buffer>;
};

const blockBytes = 512;
const nameBytesMax = 100;

/** A file with its header, filled up to whole blocks. */
export function tarFile(name: string, content: Buffer, modifiedAt: Date): Buffer {
  if (Buffer.byteLength(name) > nameBytesMax) throw new Error(`the name ${name} is too long for an archive`);
  const header = Buffer.alloc(blockBytes);
  header.write(name, 0);
  header.write('0000600\0', 100);
  header.write('0000000\0', 108);
  header.write('0000000\0', 116);
  header.write(`${octal(content.length, 11)}\0`, 124);
  header.write(`${octal(Math.trunc(modifiedAt.getTime() / 1_000), 11)}\0`, 136);
  header.write('0', 156);
  header.write('ustar\0' + '00', 257);
  header.write(`${octal(checksumOf(header), 6)}\0 `, 148);
  return Buffer.concat([header, content, Buffer.alloc(paddingOf(content.length))]);
}

function octal(value: number, digits: number): string {
  return value.toString(8).padStart(digits, '0');
}

function paddingOf(sizeBytes: number): number {
  return (blockBytes - (sizeBytes % blockBytes)) % blockBytes;
}

/** The sum of all bytes, those of the checksum itself taken for blanks. */
function checksumOf(header: Buffer): number {
  let sum = 8 * 0x20;
  for (const [index, byte] of header.entries()) if (index < 148 || index >= 156) sum += byte;
  return sum;
}

/** Its entries in their order. Throws where it is no archive, or ends before its end is marked. */
export async function* readTar(source: AsyncIterable<Buffer>): AsyncGenerator<TarEntry> {
  const input = source[Symbol.asyncIterator]();
  let rest: Buffer = Buffer.alloc(0);
  const fill = async () => {
    if (rest.length > 0) return;
    const next = await input.next();
    if (next.done === true) throw new Error('the archive is cut off');
    rest = next.value;
  };
  const take = async (bytesMax: number): Promise<Buffer> => {
    await fill();
    const piece = rest.subarray(0, bytesMax);
    rest = rest.subarray(piece.length);
    return piece;
  };
  const takeBlock = async () => {
    const block = Buffer.alloc(blockBytes);
    for (let filled = 0; filled < blockBytes;) {
      const piece = await take(blockBytes - filled);
      piece.copy(block, filled);
      filled += piece.length;
    }
    return block;
  };

  for (;;) {
    const header = await takeBlock();
    if (header.every((byte) => byte === 0)) break;
    const { name, kind, sizeBytes } = readHeader(header);
    let leftBytes = sizeBytes;
    const content = async function* () {
      while (leftBytes > 0) {
        const piece = await take(leftBytes);
        leftBytes -= piece.length;
        yield piece;
      }
    };
    yield { name, kind, sizeBytes, content: content() };
    for (leftBytes += paddingOf(sizeBytes); leftBytes > 0;) leftBytes -= (await take(leftBytes)).length;
  }
  // A second empty block, and whatever follows: a compressed archive is checked at its very end.
  while ((await input.next()).done !== true);
}

function readHeader(header: Buffer): Pick<TarEntry, 'name' | 'kind' | 'sizeBytes'> {
  const text = (start: number, end: number) => header.toString('utf8', start, end).replace(/\0.*$/s, '');
  const number = (start: number, end: number) => {
    const digits = text(start, end).trim();
    if (!/^[0-7]+$/.test(digits)) throw new Error('this is no archive, or a damaged one');
    return Number.parseInt(digits, 8);
  };
  if (number(148, 156) !== checksumOf(header)) throw new Error('this is no archive, or a damaged one');
  const type = text(156, 157);
  const prefix = text(345, 500);
  return {
    name: prefix === '' ? text(0, 100) : `${prefix}/${text(0, 100)}`,
    kind: type === '0' || type === '' ? 'file' : type === '5' ? 'directory' : 'other',
    sizeBytes: type === '5' ? 0 : number(124, 136),
  };
}
