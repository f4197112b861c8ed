import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createWriteStream, type WriteStream } from 'node:fs';
import { link, lstat, open, realpath, rename, rm } from 'node:fs/promises';
import path from 'node:path';
import type { Writable } from 'node:stream';
import { describeFailure } from '../installation/installation.ts';

/** Text that is written part by part: each is awaited, so that no more than one stands in memory. */
export type TextFile = { write: (text: string) => Promise<void>; end: () => Promise<void> };

export function writeTo(stream: Writable): TextFile {
  // The write that met it says so.
  stream.on('error', () => undefined);
  return {
    write: (text) =>
      new Promise((resolve, reject) => {
        stream.write(text, (cause) => {
          if (cause) reject(cause);
          else resolve();
        });
      }),
    end: () =>
      new Promise((resolve) => {
        stream.end(resolve);
      }),
  };
}

/** Only its owner may read it, since it contains contacts. */
const privateMode = 0o600;

/** A file that is written where it stands, or a sentence on why it cannot be. */
export async function openFile(file: string): Promise<TextFile | string> {
  const stream = createWriteStream(file, { mode: privateMode });
  const problem = await whenOpen(stream, file);
  return problem ?? writeTo(stream);
}

async function whenOpen(stream: WriteStream, file: string): Promise<string | null> {
  try {
    await once(stream, 'ready');
    return null;
  } catch (cause) {
    return `${file} cannot be written: ${describeFailure(cause)}.`;
  }
}

/** `commit` puts the file in its place; `discard`, also after a `commit` that failed, leaves everything as it was. */
export type Replacement = Pick<TextFile, 'write'> & {
  commit: () => Promise<void>;
  discard: () => Promise<void>;
};

/**
 * A file that takes its place only when it is whole: it is written beside it, flushed to the disk, and renamed over
 * what is there. Through a link, the file that it leads to is replaced. What is no ordinary file, such as a pipe or
 * a terminal, is written as it stands. Returns a sentence if that is not possible.
 */
export async function openReplacement(file: string): Promise<Replacement | string> {
  let place: string;
  try {
    place = await realpath(file).catch(async (cause: unknown) => {
      if (await isBrokenLink(file)) throw cause;
      return path.resolve(file);
    });
    const found = await lstat(place).catch(() => null);
    if (found?.isDirectory()) throw new Error('it is a folder');
    if (found !== null && !found.isFile()) return await writeInPlace(file);
  } catch (cause) {
    return `${file} cannot be written: ${describeFailure(cause)}.`;
  }
  const part = `${place}.${randomBytes(6).toString('hex')}.part`;
  const stream = createWriteStream(part, { mode: privateMode, flags: 'wx', flush: true });
  const problem = await whenOpen(stream, file);
  if (problem !== null) return problem;
  const { write, end } = writeTo(stream);
  return {
    write,
    commit: async () => {
      await end();
      if (stream.errored !== null) throw stream.errored;
      await rename(part, place);
      await flushFolder(path.dirname(place));
    },
    discard: async () => {
      await end();
      await rm(part, { force: true });
    },
  };
}

/** `part` is written; then `commit` gives it its name, or `discard` removes it. */
export type NewFile = { part: string; commit: () => Promise<void>; discard: () => Promise<void> };

/**
 * A file that is written under another name and gets its own when it is whole and on the disk, and only if nothing has
 * that name by then. What is left of an interrupted one ends in `.part`. Returns a sentence if that is not possible.
 */
export async function openNewFile(file: string): Promise<NewFile | string> {
  const place = path.resolve(file);
  const taken = `${file} is there already: name a new file, or remove it.`;
  if (await isThere(place)) return taken;
  const part = `${place}.${randomBytes(6).toString('hex')}.part`;
  try {
    await (await open(part, 'wx', privateMode)).close();
  } catch (cause) {
    return `${file} cannot be written: ${describeFailure(cause)}.`;
  }
  return {
    part,
    commit: async () => {
      const handle = await open(part, 'r+');
      await handle.sync().finally(() => handle.close());
      await nameNew(part, place);
      await flushFolder(path.dirname(place));
    },
    discard: () => rm(part, { force: true }),
  };
}

async function nameNew(part: string, place: string): Promise<void> {
  try {
    // Fails where there is a file, which a renaming would replace.
    await link(part, place);
    await rm(part);
  } catch (cause) {
    if (await isThere(place)) throw cause;
    // Some file systems have no second names.
    await rename(part, place);
  }
}

async function isThere(file: string): Promise<boolean> {
  return (await lstat(file).catch(() => null)) !== null;
}

async function isBrokenLink(file: string): Promise<boolean> {
  return (await lstat(file).catch(() => null))?.isSymbolicLink() ?? false;
}

async function writeInPlace(file: string): Promise<Replacement | string> {
  const opened = await openFile(file);
  return typeof opened === 'string'
    ? opened
    : { write: opened.write, commit: opened.end, discard: opened.end };
}

/** The new name is in the folder, which is flushed separately; some systems do not allow that. */
async function flushFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r').catch(() => null);
  await handle?.sync().catch(() => undefined);
  await handle?.close();
}
