import { randomBytes } from 'node:crypto';
import { execFile } from 'node:child_process';
import { constants } from 'node:fs';
import { lstat, mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { systemClock } from '../clock.ts';
import type { TarEntry } from '../tar.ts';
import { findNativeDirectory, prepareBinaries } from './embedded-binaries.ts';
import { withLock } from './embedded-lock.ts';
import { giveTree, makeDirectory, preparePlace } from './embedded-place.ts';
import { removeDrafts, syncDirectory } from './embedded-server.ts';

const run = promisify(execFile);

/** A start of another process that makes its files at this moment. */
const lockWaitMsMax = 90_000;

/** Everything that was written has to reach the disk. */
const syncTimeoutMs = 600_000;

export type ClusterToRestore = {
  dataDirectory: string;
  /** The files, as `startBaseBackup` has them. */
  entries: AsyncIterable<TarEntry>;
  /** What has to be there before the cluster is: the first start on it needs it. */
  beforePlaced: () => Promise<void>;
};

/**
 * Puts the files of a cluster where the embedded PostgreSQL has its own, for the next start. They get their name when all
 * of them are on the disk, so that an end in between leaves a draft, which the next start removes. Throws, and leaves
 * everything as it was, if there is a cluster already or the programs at hand are of another major version.
 */
export async function restoreCluster({
  dataDirectory,
  entries,
  beforePlaced,
}: ClusterToRestore): Promise<void> {
  const place = await preparePlace(dataDirectory);
  const lock = { directory: place.lockDirectory, owner: place.owner };
  await withLock(systemClock, lock, { waitMsMax: lockWaitMsMax }, async () => {
    if (await exists(place.cluster)) throw new Error(`there is a database in ${place.cluster}`);
    await removeDrafts(place.home);
    const binaries = await prepareBinaries({
      home: place.home,
      serverUser: place.serverUser,
      nativeDirectory: findNativeDirectory(),
      searchPath: process.env.PATH ?? '',
    });
    const draft = path.join(place.home, `cluster-new-${randomBytes(4).toString('hex')}`);
    await makeDirectory(draft, 0o700, null);
    try {
      await unpack(entries, draft);
      const version = (await readFile(path.join(draft, 'PG_VERSION'), 'utf8')).trim();
      if (version !== String(binaries.majorVersion))
        throw new Error(
          `it is of PostgreSQL ${version}, and this installation has ${binaries.majorVersion}: restore it with the release that made it`,
        );
      if (place.serverUser !== null) await giveTree(draft, place.serverUser);
      await run(binaries.initdb, ['--sync-only', '-D', draft], {
        env: binaries.environment,
        cwd: draft,
        timeout: syncTimeoutMs,
        ...place.serverUser,
      });
      await beforePlaced();
      await rename(draft, place.cluster);
      await syncDirectory(place.home);
    } catch (cause) {
      await rm(draft, { recursive: true, force: true });
      throw cause;
    }
  });
}

async function exists(file: string): Promise<boolean> {
  return lstat(file).then(
    () => true,
    () => false,
  );
}

async function unpack(entries: AsyncIterable<TarEntry>, directory: string): Promise<void> {
  for await (const { name, kind, content } of entries) {
    const target = path.join(directory, requireInner(name));
    if (kind === 'directory') {
      await mkdir(target, { recursive: true, mode: 0o700 });
      continue;
    }
    const handle = await open(target, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, 0o600);
    try {
      for await (const piece of content) await handle.writeFile(piece);
    } finally {
      await handle.close();
    }
  }
}

/** A name that leads out of the directory is none that PostgreSQL has given. */
export function requireInner(name: string): string {
  const parts = path.posix.normalize(name).split('/');
  if (path.posix.isAbsolute(name) || parts.includes('..') || name.includes('\0'))
    throw new Error(`${JSON.stringify(name)} is no name of a file of PostgreSQL`);
  return parts.join('/');
}
