/** Where tests put the files of databases: in memory, on machines that have a place for files there. */
import { readFileSync, statfsSync } from 'node:fs';
import os from 'node:os';

const memory = '/dev/shm';

/** Some databases of 10 MB and more, and twice 256 MB of log. Containers have 64 MB by default. */
const memoryBytesMin = 2 ** 31;

/**
 * A database is a thousand small files, and a run copies hundreds of them: on a disk that is busy with others each
 * copy took 0.4 s of processor time and more, in memory it takes 0.05 s.
 */
export function databasesDirectory(): string {
  return hasRoomInMemory() ? memory : os.tmpdir();
}

/** All places at which an earlier run may have left its files. */
export function databasesDirectories(): string[] {
  return [...new Set([databasesDirectory(), os.tmpdir()])];
}

/** The programs of PostgreSQL may be copied to where the data is, and have to run there. */
function hasRoomInMemory(): boolean {
  try {
    const [, options = 'noexec'] =
      /^\S+ \/dev\/shm tmpfs (\S+)/m.exec(readFileSync('/proc/mounts', 'utf8')) ?? [];
    const { bavail, bsize } = statfsSync(memory);
    return (
      !options.split(',').some((option) => ['noexec', 'ro'].includes(option)) &&
      bavail * bsize > memoryBytesMin
    );
  } catch {
    return false;
  }
}
