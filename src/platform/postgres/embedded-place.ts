/**
 * Where the embedded PostgreSQL keeps its files, and as which user it runs.
 *
 *   <data directory>/postgres/     ours ("home"); a link to /var/lib/postillion/<hash>-<random> where the server's
 *                                  user could not reach it
 *     cluster/                     PostgreSQL's own files; the server's user only
 *     log/                         ours: what the server says on its standard error
 *     sockets/                     a link to <tmp>/postillion-<hash>-<random> where the path would be too long
 *       run/                       the server's socket; the server's user only
 *       lock/                      ours: see embedded-lock.ts
 *
 * PostgreSQL refuses to run as root, so root starts it as another user. Someone who can make PostgreSQL run a command
 * acts as that user; therefore nothing that root writes, links or follows lies in a directory of that user.
 */
import { createHash, randomBytes } from 'node:crypto';
import {
  chmod,
  chown,
  lchown,
  lstat,
  mkdir,
  readdir,
  readFile,
  readlink,
  realpath,
  rename,
  rmdir,
  stat,
  symlink,
} from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { errorCode, lockSocketNameBytes } from './embedded-lock.ts';

export type SystemUser = { uid: number; gid: number };

export type EmbeddedPlace = {
  home: string;
  cluster: string;
  logFile: string;
  socketDirectory: string;
  lockDirectory: string;
  /** The user that PostgreSQL runs as; null means this process's own user. */
  serverUser: SystemUser | null;
  /** The owner of the files beside PostgreSQL's own; null means this process's own user. */
  owner: SystemUser | null;
};

/** Where database files go that must not stay below a directory which only root may enter. */
const sharedDirectory = '/var/lib/postillion';

/** `sun_path` has 108 bytes on Linux and 104 on macOS, one of them for the terminating zero. */
const socketPathBytesMax = process.platform === 'darwin' ? 103 : 107;

export const socketPort = 5432;

const longestSocketName = Math.max(`run/.s.PGSQL.${socketPort}`.length, 'lock/'.length + lockSocketNameBytes);

/**
 * Makes what is missing of the directories, and returns where everything is. Several processes may call it at
 * once: what one has made first counts for all. Rejects with a sentence that says what to fix.
 */
export async function preparePlace(dataDirectory: string): Promise<EmbeddedPlace> {
  const isRoot = process.getuid?.() === 0;
  // Passing through is all that the server's user needs; what lies beside has its own modes.
  await mkdir(dataDirectory, { recursive: true, mode: isRoot ? 0o711 : 0o700 });
  const data = await realpath(dataDirectory);
  const chosenUser = isRoot ? await chooseServerUser() : null;

  const home = await prepareHome(data, chosenUser);
  const cluster = path.join(home, 'cluster');
  const owner = isRoot ? await ownerUnlessRoot(home) : null;
  const serverUser = isRoot ? ((await ownerUnlessRoot(cluster)) ?? owner ?? chosenUser) : null;
  if (!isRoot) await refuseForeignHome(home);
  if (serverUser !== null) {
    const closed = await firstClosedDirectory(home, serverUser);
    if (closed !== null) {
      throw new Error(
        `PostgreSQL runs as user ${serverUser.uid}, which cannot enter ${closed}: allow it with chmod o+x ${closed}`,
      );
    }
  }

  const sockets = await prepareSockets(home, data);
  const socketDirectory = path.join(sockets, 'run');
  await makeDirectory(socketDirectory, 0o700, serverUser);
  if (serverUser !== null) await chown(socketDirectory, serverUser.uid, serverUser.gid);
  const lockDirectory = path.join(sockets, 'lock');
  await makeDirectory(lockDirectory, 0o700, owner);
  const logDirectory = path.join(home, 'log');
  await makeDirectory(logDirectory, 0o700, owner);

  const logFile = path.join(logDirectory, 'postgresql.log');
  return { home, cluster, logFile, socketDirectory, lockDirectory, serverUser, owner };
}

/** Where the files of a data directory are, if they could not be put into it; null if they are there, or nowhere yet. */
export async function findFilesElsewhere(dataDirectory: string): Promise<string | null> {
  const home = path.join(dataDirectory, 'postgres');
  return (await kindOf(home)) === 'link' ? readlink(home) : null;
}

/** The home directory in use: the link is made before anything is put at its target, so that nothing ever moves. */
async function prepareHome(data: string, serverUser: SystemUser | null): Promise<string> {
  const home = path.join(data, 'postgres');
  if ((await kindOf(home)) === 'missing') {
    if (serverUser === null || (await firstClosedDirectory(data, serverUser)) === null) {
      await makeDirectory(home, serverUser === null ? 0o700 : 0o711, null);
    } else {
      await mkdir(sharedDirectory, { recursive: true, mode: 0o711 });
      // The random part keeps a new data directory from finding the database of a removed one at the same path.
      await linkNewDirectory(home, path.join(sharedDirectory, `${hashOf(data)}-${randomName()}`), 0o711);
    }
  }
  try {
    return await realpath(home);
  } catch (cause) {
    if (errorCode(cause) !== 'ENOENT') throw cause;
    const target = await readlink(home);
    throw new Error(
      `the database files should be in ${target}, which is gone: restore it, or remove ${home} to start with an empty database`,
      { cause },
    );
  }
}

/** A directory that is short enough for sockets: the home itself, or one under the system's temporary directory. */
async function prepareSockets(home: string, data: string): Promise<string> {
  const sockets = path.join(home, 'sockets');
  if ((await kindOf(sockets)) === 'missing') {
    if (Buffer.byteLength(sockets) + 1 + longestSocketName <= socketPathBytesMax) {
      await makeDirectory(sockets, 0o711, null);
    } else {
      const name = `postillion-${hashOf(data)}-${randomName()}`;
      await linkNewDirectory(sockets, path.join(await realpath(os.tmpdir()), name), 0o711);
    }
  }
  if ((await kindOf(sockets)) !== 'link') return sockets;

  // Every user may write to the temporary directory, and it is emptied when the machine starts.
  const target = await readlink(sockets);
  await makeDirectory(target, 0o711, null);
  const found = await lstat(target);
  const ourUid = process.getuid?.() ?? found.uid;
  const isOurs = found.uid === ourUid || (ourUid === 0 && found.uid === (await stat(home)).uid);
  if (!found.isDirectory() || !isOurs || (found.mode & 0o022) !== 0) {
    throw new Error(`${target} is not a private directory of ours: remove it, and ${sockets} with it`);
  }
  if (Buffer.byteLength(target) + 1 + longestSocketName > socketPathBytesMax) {
    throw new Error(`the path ${target} is too long for a Unix socket: set TMPDIR to a shorter one`);
  }
  return target;
}

/** Makes `target` and a link to it; if another process has made the link first, that one stays. */
async function linkNewDirectory(linkPath: string, target: string, mode: number): Promise<void> {
  await makeDirectory(target, mode, null);
  try {
    await symlink(target, linkPath);
  } catch (cause) {
    await rmdir(target);
    if (errorCode(cause) !== 'EEXIST') throw cause;
  }
}

/**
 * Makes a directory with exactly this mode, whatever the umask; one that is there is left as it is. It gets its
 * name when mode and owner are right, so that neither a kill nor another process meets it half-made.
 */
export async function makeDirectory(
  directory: string,
  mode: number,
  owner: SystemUser | null,
): Promise<void> {
  if ((await kindOf(directory)) !== 'missing') return;
  const draft = `${directory}.new-${randomName()}`;
  await mkdir(draft, { mode: 0o700 });
  await chmod(draft, mode);
  if (owner !== null) await chown(draft, owner.uid, owner.gid);
  try {
    // If another process was quicker, this replaces its directory while that is empty, and fails from then on.
    await rename(draft, directory);
  } catch (cause) {
    await rmdir(draft);
    if ((await kindOf(directory)) === 'missing') throw cause;
  }
}

/** The user named `postgres` if there is one, else `nobody`; initdb insists that the user be listed. */
async function chooseServerUser(): Promise<SystemUser> {
  const lines = (await readFile('/etc/passwd', 'utf8')).split('\n').map((line) => line.split(':'));
  for (const wanted of ['postgres', 'nobody']) {
    const [, , uid, gid] = lines.find(([name]) => name === wanted) ?? [];
    if (uid !== undefined && gid !== undefined) return { uid: Number(uid), gid: Number(gid) };
  }
  throw new Error(
    'PostgreSQL refuses to run as root, and /etc/passwd lists neither postgres nor nobody: start as another user',
  );
}

/**
 * Files made by an ordinary user stay that user's when root starts the program for once. Files that belong to
 * root (copied by it, say) or are not there yet have no such user: null.
 */
async function ownerUnlessRoot(directory: string): Promise<SystemUser | null> {
  try {
    const { uid, gid } = await stat(directory);
    return uid === 0 ? null : { uid, gid };
  } catch (cause) {
    if (errorCode(cause) === 'ENOENT') return null;
    throw cause;
  }
}

async function refuseForeignHome(home: string): Promise<void> {
  const { uid } = await stat(home);
  if (process.getuid === undefined || uid === process.getuid()) return;
  throw new Error(
    `${home} belongs to user ${uid}: start as that user, or as root, or choose another data directory`,
  );
}

/** The outermost directory on the way to `target`, itself included, that `user` may not pass; null if none. */
export async function firstClosedDirectory(target: string, user: SystemUser): Promise<string | null> {
  const steps = (await realpath(target)).split(path.sep);
  for (let depth = 1; depth <= steps.length; depth += 1) {
    const directory = steps.slice(0, depth).join(path.sep) || path.sep;
    const { uid, gid, mode } = await stat(directory);
    const executeBit = uid === user.uid ? 0o100 : gid === user.gid ? 0o010 : 0o001;
    if ((mode & executeBit) === 0) return directory;
  }
  return null;
}

/** Hands over a directory that so far only root could write to. Links inside are handed over, not followed. */
export async function giveTree(directory: string, user: SystemUser): Promise<void> {
  for (const entry of await readdir(directory, { withFileTypes: true })) {
    const item = path.join(directory, entry.name);
    if (entry.isDirectory()) await giveTree(item, user);
    else await lchown(item, user.uid, user.gid);
  }
  await lchown(directory, user.uid, user.gid);
}

async function kindOf(file: string): Promise<'missing' | 'link' | 'other'> {
  try {
    return (await lstat(file)).isSymbolicLink() ? 'link' : 'other';
  } catch (cause) {
    if (errorCode(cause) === 'ENOENT') return 'missing';
    throw cause;
  }
}

function hashOf(directory: string): string {
  return createHash('sha256').update(directory).digest('hex').slice(0, 16);
}

function randomName(): string {
  return randomBytes(4).toString('hex');
}

/** For `catch`: lets every error pass but the one with this code. */
export function unless(code: string): (cause: unknown) => undefined {
  return (cause) => {
    if (errorCode(cause) !== code) throw cause;
    return undefined;
  };
}
