import { createReadStream } from 'node:fs';
import { open } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { ReadableStream } from 'node:stream/web';
import { isLongerThan } from '../platform/characters.ts';
import { readSmallFile } from './small-file.ts';

/**
 * Backups under a passphrase, in the format of age (https://age-encryption.org/v1), which other programs read as well:
 * `age --decrypt` asks for the passphrase. The key is made of it by scrypt (RFC 7914, N = 2^18), and the content goes
 * through in pieces of 64 kB, each of which is authenticated (ChaCha20-Poly1305), and the last of which is known as such.
 */

const header = 'age-encryption.org/v1';

/** Shorter ones are guessed from a copy of the file, however slow each guess is. */
const passphraseLengthMin = 12;

/** What a file holds, without the end of its line; a sentence where it is no passphrase. */
export async function readPassphrase(
  file: string,
): Promise<{ kind: 'read'; passphrase: string } | { kind: 'refused'; problem: string }> {
  const read = await readSmallFile(file);
  if (read.kind === 'unreadable')
    return { kind: 'refused', problem: `${file} cannot be read: ${read.problem}.` };
  const passphrase = read.text.replace(/\r?\n$/, '');
  return isLongerThan(passphrase, passphraseLengthMin - 1)
    ? { kind: 'read', passphrase }
    : {
        kind: 'refused',
        problem: `The passphrase in ${file} must have at least ${passphraseLengthMin} characters.`,
      };
}

export async function isEncrypted(file: string): Promise<boolean> {
  const handle = await open(file, 'r');
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(header.length), 0, header.length, 0);
    return buffer.toString('latin1', 0, bytesRead) === header;
  } finally {
    await handle.close();
  }
}

/** The octets of `source`, encrypted. A few pieces of 64 kB are in memory at a time. */
export async function* encrypt(
  source: AsyncIterable<Uint8Array>,
  passphrase: string,
): AsyncGenerator<Uint8Array> {
  const { Encrypter } = await import('age-encryption');
  const encrypter = new Encrypter();
  encrypter.setPassphrase(passphrase);
  yield* iterate(await encrypter.encrypt(toWeb(source)));
}

/**
 * Opens an encrypted file; the result reads what it holds, each time from its beginning. Null where the passphrase is
 * another one, or the header damaged, which cannot be told apart. What was changed or cut off behind it fails as it is
 * read.
 */
export async function openEncrypted(
  file: string,
  passphrase: string,
): Promise<(() => Promise<Readable>) | null> {
  const { Decrypter } = await import('age-encryption');
  const byPassphrase = new Decrypter();
  byPassphrase.addPassphrase(passphrase);
  let fileKey: Uint8Array;
  try {
    fileKey = await byPassphrase.decryptHeader(await readHeader(file));
  } catch {
    return null;
  }
  return async () => {
    // The passphrase takes seconds; the key that it has opened does not.
    const byKey = new Decrypter();
    byKey.addIdentity({ unwrapFileKey: () => fileKey });
    const source = createReadStream(file);
    try {
      return Readable.from(iterate(await byKey.decrypt(toWeb(source as AsyncIterable<Buffer>))));
    } catch (cause) {
      source.destroy();
      throw cause;
    }
  };
}

/** One under a passphrase has 150 octets. */
const headerBytesMax = 4_096;

/** All lines up to the one that begins with three hyphens and ends with the header's checksum. */
async function readHeader(file: string): Promise<Buffer> {
  const handle = await open(file, 'r');
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(headerBytesMax), 0, headerBytesMax, 0);
    const last = buffer.indexOf('\n---');
    const end = last === -1 ? -1 : buffer.indexOf('\n', last + 1);
    return buffer.subarray(0, end === -1 ? bytesRead : end + 1);
  } finally {
    await handle.close();
  }
}

// The streams of the web have other types in Node.js than in browsers, for which the package is made as well.
type OfBrowsers = globalThis.ReadableStream<Uint8Array<ArrayBuffer>>;

function toWeb(source: AsyncIterable<Uint8Array>): OfBrowsers {
  return ReadableStream.from(source) as unknown as OfBrowsers;
}

function iterate(stream: globalThis.ReadableStream<Uint8Array>): AsyncIterable<Uint8Array> {
  return stream;
}
