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
  /** A sentence for each process that ended without being killed, with the end of what it logged. */
  ownEnds: () => string[];
};

export type ServerOptions = {
  role: 'api' | 'worker';
  environment: Readonly<Record<string, string>>;
  /** What the processes log is appended to this file. */
  logFile: string;
};

type OwnEnd = { ending: string; lines: readonly string[] };

/** Enough for an error with the sentence before it; a line of the log can be a whole stack. */
const lastLinesMax = 6;
const lineCharactersMax = 600;

export function createServer({ role, environment, logFile }: ServerOptions): Server {
  const log = createWriteStream(logFile, { flags: 'a' });
  let child: ChildProcess | null = null;
  let ready: Promise<void> = Promise.resolve();
  let isKilled = true;
  const ownEnds: OwnEnd[] = [];
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
      const startedAtMs = Date.now();
      // Read on after the exit, which may be told before the last lines are.
      const lines: string[] = [];
      started.once('exit', (code, signal) => {
        if (isKilled && child === started) return;
        const ending = `with ${signal ?? `code ${code ?? 'unknown'}`} after ${Date.now() - startedAtMs} ms`;
        ownEnds.push({ ending, lines });
      });
      started.stderr.pipe(log, { end: false });
      ready = new Promise((resolve) => {
        createInterface({ input: started.stderr }).on('line', (line) => {
          lines.push(line.slice(0, lineCharactersMax));
          if (lines.length > lastLinesMax) lines.shift();
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
    ownEnds: () =>
      ownEnds.map(({ ending, lines }) => {
        const said = lines.length === 0 ? ' without a word' : `; it said last:\n  ${lines.join('\n  ')}`;
        return `a process ended that nobody had killed: ${role}, ${ending}${said}`;
      }),
  };
}

export function findOwnEnds({ api, workers }: { api: Server; workers: readonly Server[] }): string[] {
  return [api, ...workers].flatMap((server) => server.ownEnds());
}
