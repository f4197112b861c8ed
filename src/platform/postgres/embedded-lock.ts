/**
 * A lock between processes of one machine that the kernel frees when its holder dies, however it dies.
 *
 * Node.js has no `flock`, and a file that names a process id is stale after a kill and ambiguous once the id is
 * used again. So a process that wants the lock listens on a Unix socket of its own, and claims the lock by a numbered
 * file that names this socket. A claim is valid while its socket can be connected to; the kernel closes it with
 * its process. A process that waits stays connected to the holder, and is woken by the end of that connection.
 *
 * A stale claim is never taken over in place (two who both found it stale would both succeed): it is outbid by
 * the next number, which `link` creates for one of them only. The highest claim is never removed by anyone but
 * the one that outbid it, so that a contender that slept through several turns sees, when it looks again after
 * claiming, that its number is not the highest, and withdraws.
 *
 * It does not work across machines or containers that share the directory; neither does PostgreSQL's own lock.
 */
import { randomBytes } from 'node:crypto';
import { chown, link, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import net from 'node:net';
import path from 'node:path';
import type { Clock } from '../clock.ts';
import { sleep } from '../clock.ts';

export type LockPlace = {
  /** Exists, is written to by nothing else, and is short enough for a socket's path. */
  directory: string;
  /** The owner of the files when root makes them for another user; null means the process's own user. */
  owner: { uid: number; gid: number } | null;
};

/** The longest file name that the lock uses for a socket. */
export const lockSocketNameBytes = 12;

/** Connections are refused with EAGAIN while this many contenders wait already; more only costs memory. */
const waitersMax = 128;

/**
 * Runs `work` while no other process does so under the same directory. Rejects when the lock could not be had
 * within `waitMsMax`, or when `signal` aborts the waiting.
 */
export async function withLock<Result>(
  clock: Clock,
  place: LockPlace,
  limits: { waitMsMax: number; signal?: AbortSignal },
  work: () => Promise<Result>,
): Promise<Result> {
  const socketName = randomBytes(lockSocketNameBytes / 2).toString('hex');
  const presence = await listenAt(path.join(place.directory, socketName));
  const draft = path.join(place.directory, `${socketName}.claim`);
  try {
    await writeFile(draft, socketName, { flag: 'wx', mode: 0o600 });
    await giveTo(place, [path.join(place.directory, socketName), draft]);
    await claim(clock, place.directory, draft, limits);
    return await work();
  } finally {
    await rm(draft, { force: true });
    await presence.close();
  }
}

async function claim(
  clock: Clock,
  directory: string,
  draft: string,
  limits: { waitMsMax: number; signal?: AbortSignal },
): Promise<void> {
  const giveUpAtMs = clock.monotonicMs() + limits.waitMsMax;
  for (;;) {
    limits.signal?.throwIfAborted();
    const leftMs = giveUpAtMs - clock.monotonicMs();
    if (leftMs <= 0) throw new Error(`the lock in ${directory} is still held after ${limits.waitMsMax} ms`);

    const highest = highestClaim(await readdir(directory));
    if (highest > 0) {
      const holder = await readIfThere(path.join(directory, String(highest)));
      if (holder === null) continue;
      if (await waitWhileAlive(clock, path.join(directory, path.basename(holder)), leftMs, limits.signal))
        continue;
    }

    const ours = highest + 1;
    if (!(await isLinked(draft, path.join(directory, String(ours))))) continue;
    const names = await readdir(directory);
    if (highestClaim(names) === ours) {
      await removeOutbid(directory, names, ours);
      return;
    }
    await rm(path.join(directory, String(ours)), { force: true });
  }
}

/** The sockets of killed holders go with their claims. */
async function removeOutbid(directory: string, names: readonly string[], ours: number): Promise<void> {
  for (const name of names) {
    if (!/^\d{1,9}$/.test(name) || Number(name) >= ours) continue;
    const holder = await readIfThere(path.join(directory, name));
    if (holder !== null) await rm(path.join(directory, path.basename(holder)), { force: true });
    await rm(path.join(directory, name), { force: true });
  }
}

/** Sockets are hexadecimal too, but longer than nine digits. */
function highestClaim(names: readonly string[]): number {
  return names
    .filter((name) => /^\d{1,9}$/.test(name))
    .reduce((highest, name) => Math.max(highest, Number(name)), 0);
}

async function isLinked(draft: string, target: string): Promise<boolean> {
  try {
    await link(draft, target);
    return true;
  } catch (cause) {
    if (errorCode(cause) === 'EEXIST') return false;
    throw cause;
  }
}

async function readIfThere(file: string): Promise<string | null> {
  try {
    return await readFile(file, 'utf8');
  } catch (cause) {
    if (errorCode(cause) === 'ENOENT') return null;
    throw cause;
  }
}

/**
 * True when the holder was there, and has ended or outlasted `waitMsMax` since; false when it was gone already.
 * The open connection, and not the timer, keeps this process alive meanwhile.
 */
function waitWhileAlive(
  clock: Clock,
  socketPath: string,
  waitMsMax: number,
  signal: AbortSignal | undefined,
): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const socket = net.connect(socketPath);
    const end = () => {
      socket.destroy();
    };
    const cancelTimer = clock.after(waitMsMax, end);
    signal?.addEventListener('abort', end, { once: true });
    let failure: NodeJS.ErrnoException | null = null;
    socket.on('error', (error) => {
      failure = error;
    });
    // Without a reader the end of the connection would never be seen.
    socket.resume();
    socket.on('close', () => {
      cancelTimer();
      signal?.removeEventListener('abort', end);
      const code = errorCode(failure);
      if (code === 'ECONNREFUSED' || code === 'ENOENT') resolve(false);
      else if (code === 'EAGAIN')
        sleep(clock, 50).then(() => {
          resolve(true);
        }, reject);
      else if (failure === null || code === 'ECONNRESET' || code === 'EPIPE') resolve(true);
      else reject(failure);
    });
  });
}

async function listenAt(socketPath: string): Promise<{ close: () => Promise<void> }> {
  const waiters = new Set<net.Socket>();
  const server = net.createServer((socket) => {
    waiters.add(socket);
    socket.on('error', () => undefined);
    socket.on('close', () => waiters.delete(socket));
    socket.resume();
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen({ path: socketPath, backlog: waitersMax }, resolve);
  });
  return {
    // Closing removes the socket's file first: a process that is woken finds the claim stale.
    close: () =>
      new Promise((resolve) => {
        server.close(() => {
          resolve();
        });
        for (const socket of waiters) socket.destroy();
      }),
  };
}

async function giveTo({ owner }: LockPlace, files: readonly string[]): Promise<void> {
  if (owner === null) return;
  for (const file of files) await chown(file, owner.uid, owner.gid);
}

/** The code of an operating system's error, for example `ENOENT`. */
export function errorCode(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}
