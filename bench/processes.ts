import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';

const root = path.resolve(import.meta.dirname, '..');

/** A child process that speaks JSON lines. */
export type LineProcess = {
  pid: number;
  /** The next line that fulfils the condition; rejects if the process ends first. */
  nextLine: (isWanted: (line: Record<string, unknown>) => boolean) => Promise<Record<string, unknown>>;
  write: (text: string) => void;
  stop: () => Promise<void>;
};

const running = new Set<ChildProcess>();
const cleanUps = new Set<() => Promise<void>>();

/** What has to be done when the benchmark is interrupted. */
export function cleanUpWhenInterrupted(cleanUp: () => Promise<void>): void {
  cleanUps.add(cleanUp);
}

/** Ends all child processes, whatever they are doing; resolves when they are gone. */
export async function killAll(): Promise<void> {
  const ends = [...running].map((child) => once(child, 'exit'));
  for (const child of running) child.kill('SIGKILL');
  await Promise.all(ends);
}

/** Nothing may outlive the benchmark, also when it is interrupted. */
export function stopAllOnExit(): void {
  process.on('exit', () => {
    for (const child of running) child.kill('SIGKILL');
  });
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => {
      void Promise.allSettled([...cleanUps].map((cleanUp) => cleanUp())).finally(() => process.exit(1));
    });
  }
}

export type ServerProcess = LineProcess & {
  /** Of the API, if it has that role. */
  url: string;
};

/** The built server in one role; resolves when it is ready. */
export async function startServer(role: string, environment: Record<string, string>): Promise<ServerProcess> {
  // What a process costs is read by its id.
  const settings = { POSTILLION_PROCESSES: '1', ...environment };
  const server = startLines('stderr', ['bin/postillion', 'serve', '--role', role], settings);
  const { url } = await server.nextLine((line) => line.msg === 'ready');
  return { ...server, url: typeof url === 'string' ? url : '' };
}

/** A TypeScript module of the project as a process of its own. */
export function startModule(module: string, parameters: string[]): LineProcess {
  return startLines('stdout', ['--import', 'tsx', module, ...parameters], {});
}

function startLines(
  output: 'stdout' | 'stderr',
  parameters: string[],
  environment: Record<string, string>,
): LineProcess {
  const child = spawn(process.execPath, parameters, {
    cwd: root,
    env: { ...process.env, ...environment },
    stdio: ['pipe', output === 'stdout' ? 'pipe' : 'ignore', output === 'stderr' ? 'pipe' : 'inherit'],
  });
  running.add(child);
  const source = output === 'stdout' ? child.stdout : child.stderr;
  if (source === null || child.pid === undefined) throw new Error(`${parameters.join(' ')} did not start`);
  let waiting: ((line: Record<string, unknown> | null) => void)[] = [];
  const tell = (line: Record<string, unknown> | null) => {
    const told = waiting;
    waiting = [];
    for (const resolve of told) resolve(line);
  };
  createInterface({ input: source }).on('line', (text) => {
    if (text.startsWith('{')) tell(JSON.parse(text) as Record<string, unknown>);
  });
  const ended = new Promise<void>((resolve) => {
    child.once('exit', () => {
      running.delete(child);
      tell(null);
      resolve();
    });
  });
  return {
    pid: child.pid,
    nextLine: async (isWanted) => {
      for (;;) {
        const line = await new Promise<Record<string, unknown> | null>((resolve) => waiting.push(resolve));
        if (line === null) throw new Error(`${parameters.join(' ')} ended`);
        if (isWanted(line)) return line;
      }
    },
    write: (text) => child.stdin?.write(text),
    stop: async () => {
      child.kill('SIGTERM');
      await ended;
    },
  };
}

/** Linux counts the processor time of a process in hundredths of a second. */
const tickUs = 10_000;

/** Microseconds of processor time that a process has used, or null where the system does not say. */
export function cpuUs(pid: number): number | null {
  return readTimes(pid)?.ownUs ?? null;
}

/** `endedUs`: of its children that have ended. */
function readTimes(pid: number): { ownUs: number; endedUs: number } | null {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? [];
    const [user, system, endedUser, endedSystem] = fields
      .slice(11, 15)
      .map((ticks) => Number(ticks) * tickUs);
    return { ownUs: (user ?? 0) + (system ?? 0), endedUs: (endedUser ?? 0) + (endedSystem ?? 0) };
  } catch {
    return null;
  }
}

/** The same for all backends of the PostgreSQL in a data directory, those that have ended included. */
export function postgresCpuUs(dataDirectory: string): number {
  const postmaster = readFileSync(path.join(dataDirectory, 'postgres/cluster/postmaster.pid'), 'utf8').split(
    '\n',
  )[0];
  const children = readFileSync(`/proc/${postmaster}/task/${postmaster}/children`, 'utf8').trim().split(' ');
  const ended = readTimes(Number(postmaster))?.endedUs ?? 0;
  return children.reduce((sum, pid) => sum + (cpuUs(Number(pid)) ?? 0), ended);
}

/** The most memory that a process has had, on Linux. */
export function peakMemoryMb(pid: number): number | null {
  try {
    const peak = /VmHWM:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
    return peak === undefined ? null : Math.round(Number(peak) / 1_024);
  } catch {
    return null;
  }
}
