import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';

const program = path.resolve(import.meta.dirname, '../../bin/postillion');

/** A server process that is killed again and again, and started anew at once. */
export type Server = {
  pid: () => number;
  /** Resolves when the present process has said that it is ready. */
  whenReady: () => Promise<void>;
  /** With these settings over those that it always has. */
  start: (settings?: Readonly<Record<string, string>>) => void;
  /** `kill -9`; resolves when the process is gone. It is not started again. */
  kill: () => Promise<void>;
  /** How often a process ended without being killed. */
  endsOfItsOwn: () => number;
};

export type ServerOptions = {
  role: 'api' | 'worker';
  environment: Readonly<Record<string, string>>;
  /** What the processes log is appended to this file. */
  logFile: string;
};

export function createServer({ role, environment, logFile }: ServerOptions): Server {
  const log = createWriteStream(logFile, { flags: 'a' });
  let child: ChildProcess | null = null;
  let ready: Promise<void> = Promise.resolve();
  let isKilled = true;
  let endsOfItsOwn = 0;
  return {
    pid: () => child?.pid ?? 0,
    whenReady: () => ready,
    start: (settings = {}) => {
      const started = spawn(process.execPath, [program, 'serve', '--role', role], {
        // None of the harness's own settings get through. It kills processes by their ids.
        env: { PATH: process.env.PATH, POSTILLION_PROCESSES: '1', ...environment, ...settings },
        stdio: ['ignore', 'ignore', 'pipe'],
      });
      child = started;
      isKilled = false;
      started.once('exit', () => {
        if (!isKilled || child !== started) endsOfItsOwn += 1;
      });
      started.stderr.pipe(log, { end: false });
      ready = new Promise((resolve) => {
        createInterface({ input: started.stderr }).on('line', (line) => {
          if (line.includes('"msg":"ready"')) resolve();
        });
      });
    },
    kill: async () => {
      isKilled = true;
      if (child?.exitCode !== null || child.signalCode !== null) return;
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
    },
    endsOfItsOwn: () => endsOfItsOwn,
  };
}
