import { execFile } from 'node:child_process';
import { mkdir, open, rm } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';

/** A disk of its own for the data directory, small enough to be filled. */
export type SmallDisk = {
  /** Takes all the room there is, and what becomes free meanwhile; the result gives it back. */
  fill: () => Promise<() => Promise<void>>;
  remove: () => Promise<void>;
};

/** Enough for the longest run; the filler takes what is left of it, from memory. */
const megabytes = 1_024;
const fillAgainEveryMs = 200;
/** First in large blocks, then down to the last page. */
const blocksBytes = [1_048_576, 4_096];

/** Mounts a file system in memory at the directory, which only root may; null if that does not work. */
export async function mountSmallDisk(directory: string): Promise<SmallDisk | null> {
  await mkdir(directory, { recursive: true });
  try {
    await run('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m,mode=0711`, 'tmpfs', directory]);
  } catch {
    return null;
  }
  return {
    fill: () => fill(path.join(directory, 'filler')),
    remove: async () => {
      // Lazily: a process that is just ending may still have a file open.
      await run('umount', ['-l', directory]);
    },
  };
}

async function fill(fileName: string): Promise<() => Promise<void>> {
  await fillUp(fileName);
  const over = new AbortController();
  const filling = (async () => {
    while (!over.signal.aborted) {
      await delay(fillAgainEveryMs);
      await fillUp(fileName);
    }
  })();
  return async () => {
    over.abort();
    await filling;
    await rm(fileName);
  };
}

async function fillUp(fileName: string): Promise<void> {
  const file = await open(fileName, 'a');
  try {
    for (const bytes of blocksBytes) {
      const block = Buffer.alloc(bytes);
      while (await hasRoomFor(file.write(block))) {
        // Ends when the disk is full, which takes no longer than its size.
      }
    }
  } finally {
    await file.close();
  }
}

async function hasRoomFor(writing: Promise<unknown>): Promise<boolean> {
  try {
    await writing;
    return true;
  } catch (cause) {
    if (cause instanceof Error && 'code' in cause && cause.code === 'ENOSPC') return false;
    throw cause;
  }
}

const run = promisify(execFile);
