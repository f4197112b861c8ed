import { type FileHandle, open } from 'node:fs/promises';
import net from 'node:net';
import os from 'node:os';

/** One end of a TCP connection. */
export type SocketEnd = { address: string; port: number };

/**
 * Whether the other end of a connection belongs to this process's own user, or to root. It is looked for in
 * `/proc/net/tcp` and `tcp6` (proc(5)), which list the sockets of this network namespace: one of another machine, or
 * of another container, is not there. Null where the system has no such table: macOS and Windows.
 *
 * Only an established connection counts, with a program that still holds it: the kernel shows a closed one as root's, so
 * a client that sends a request and disconnects would pass for root.
 */
export async function isOwnSocket(theirs: SocketEnd, ours: SocketEnd): Promise<boolean | null> {
  const { platform, geteuid } = process;
  if (platform !== 'linux' || geteuid === undefined) return null;
  if (looking >= lookingMax) return false;
  looking += 1;
  const found = last.then(() => findOwner(theirs, ours));
  last = found.then(
    () => undefined,
    () => undefined,
  );
  try {
    const owner = await found;
    return owner !== null && (owner === 0 || owner === geteuid());
  } finally {
    looking -= 1;
  }
}

/** One table is read at a time: each is a piece of memory, and work for the kernel under its locks. */
let last: Promise<unknown> = Promise.resolve();
let looking = 0;

/** More requests wait for a look no longer, and count as not direct. A look takes less than a millisecond. */
const lookingMax = 200;

/** The rows can shift while they are read, in pieces of 4 kB, so that one may be missed. */
const triesMax = 2;

async function findOwner(theirs: SocketEnd, ours: SocketEnd): Promise<number | null> {
  // A program may talk IPv4 through an IPv6 socket, as Java does: it is then in the other table.
  const wanted = (['tcp', 'tcp6'] as const).flatMap((table) => {
    const row = rowBeginning(table, theirs, ours);
    return row === null ? [] : { table, row };
  });
  for (let tries = 0; tries < triesMax; tries += 1) {
    for (const { table, row } of wanted) {
      const owner = ownerIn(await readTable(table), row);
      if (owner !== null) return owner;
    }
  }
  return null;
}

/** 27,000 connections and more; of a machine with more of them the rest is not looked at. */
const tableBytesMax = 4 * 1_048_576;
const pieceBytes = 65_536;

/** Empty if it cannot be read: without IPv6 there is no table of it. */
async function readTable(table: 'tcp' | 'tcp6'): Promise<Buffer> {
  let file: FileHandle;
  try {
    file = await open(`/proc/self/net/${table}`, 'r');
  } catch {
    return Buffer.alloc(0);
  }
  try {
    const pieces: Buffer[] = [];
    for (let bytes = 0; bytes < tableBytesMax;) {
      const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(pieceBytes), 0, pieceBytes);
      if (bytesRead === 0) break;
      pieces.push(buffer.subarray(0, bytesRead));
      bytes += bytesRead;
    }
    return Buffer.concat(pieces);
  } finally {
    await file.close();
  }
}

/** The columns up to the state, which is `01` for an established connection. */
function rowBeginning(table: 'tcp' | 'tcp6', theirs: SocketEnd, ours: SocketEnd): string | null {
  const local = showEnd(table, theirs);
  const remote = showEnd(table, ours);
  return local === null || remote === null ? null : `: ${local} ${remote} 01 `;
}

/** The user of the row, or null if there is none, or if no program holds its socket any more (inode 0). */
function ownerIn(table: Buffer, row: string): number | null {
  const start = table.indexOf(row);
  if (start === -1) return null;
  const lineEnd = table.indexOf('\n', start);
  const columns = table
    .subarray(start + row.length, lineEnd === -1 ? undefined : lineEnd)
    .toString('latin1')
    .trim()
    .split(/ +/);
  // After the state: queues, timer, retransmits, uid, timeout, inode.
  const [, , , uid = '', , inode = '0'] = columns;
  return inode === '0' || !/^\d+$/.test(uid) ? null : Number(uid);
}

/**
 * As the kernel writes it: addresses in hexadecimal, in words of 32 bits in the order of the machine; the port as a
 * number. Null for an address that the table cannot have.
 */
export function showEnd(table: 'tcp' | 'tcp6', { address, port }: SocketEnd): string | null {
  const octets = octetsOf(address);
  if (octets === null) return null;
  const isIPv4 = octets.subarray(0, mappedPrefix.length).equals(mappedPrefix);
  if (table === 'tcp' && !isIPv4) return null;
  const shown = Buffer.from(table === 'tcp' ? octets.subarray(mappedPrefix.length) : octets);
  if (os.endianness() === 'LE') shown.swap32();
  return `${shown.toString('hex')}:${port.toString(16).padStart(4, '0')}`.toUpperCase();
}

/** `::ffff:0:0/96` (RFC 4291 §2.5.5.2). */
const mappedPrefix = Buffer.from('00000000000000000000ffff', 'hex');

/** The 16 octets of an address, IPv4 as IPv6 writes it. */
function octetsOf(address: string): Buffer | null {
  const bare = address.toLowerCase().replace(/^::ffff:(?=[\d.]+$)/, '');
  if (net.isIPv4(bare)) return Buffer.concat([mappedPrefix, Buffer.from(bare.split('.').map(Number))]);
  // Of IPv6 there is one loopback address, and no other is asked about.
  return bare === '::1' ? Buffer.from('00000000000000000000000000000001', 'hex') : null;
}
