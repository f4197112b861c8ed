/** A PostgreSQL whose processes all stand still, as on a machine that is out of memory or whose disk hangs. */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';

/** Stops the embedded PostgreSQL of that data directory; the result lets it go on. */
export async function stopPostgres(dataDirectory: string): Promise<() => void> {
  const pidFile = await readFile(path.join(dataDirectory, 'postgres/cluster/postmaster.pid'), 'utf8');
  const server = Number(pidFile.split('\n')[0]);
  // First the server, so that it makes no further processes.
  process.kill(server, 'SIGSTOP');
  const { stdout } = await promisify(execFile)('ps', ['-A', '-o', 'pid=,ppid=']);
  const children = stdout
    .split('\n')
    .map((line) => line.trim().split(/\s+/).map(Number))
    .flatMap(([pid, parent]) => (pid !== undefined && parent === server ? [pid] : []));
  const stopped = [server, ...children].filter((pid) => signal(pid, 'SIGSTOP'));
  return () => {
    for (const pid of stopped) signal(pid, 'SIGCONT');
  };
}

/** Whether the process is there. */
function signal(pid: number, name: NodeJS.Signals): boolean {
  try {
    return process.kill(pid, name);
  } catch {
    return false;
  }
}
