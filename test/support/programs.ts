/** The built program, in processes of its own that see no settings but those that they are given. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { afterEach } from 'vitest';

export const program = path.resolve(import.meta.dirname, '../../bin/postillion');

export type Settings = Readonly<Record<string, string>>;

/** `exitCode` is null where a signal ended it. */
export type Ended = { exitCode: number | null; output: string; errors: string };

export type Program = {
  child: ChildProcess;
  /** All that it has said so far. */
  said: { output: string; errors: string };
  /** The first match in what it has printed, as soon as there is one; null if it ends without. */
  untilSaid: (where: 'output' | 'errors', pattern: RegExp) => Promise<RegExpExecArray | null>;
  ended: Promise<Ended>;
};

export type StartOptions = {
  /** All that it can read. */
  input?: string;
  /** Those of its runtime. */
  nodeOptions?: readonly string[];
  /** The Node.js that it runs on; this one unless given. */
  runtime?: string;
  /** Another copy of the program than this checkout's. */
  entry?: string;
  /** The folder that it is run in. */
  directory?: string;
};

export type Programs = {
  start: (settings: Settings, words: readonly string[], more?: StartOptions) => Program;
  /** Resolves when it has ended. */
  run: (settings: Settings, ...words: string[]) => Promise<Ended>;
};

/** Where a program with an API says that it serves: everything before `/v1`. */
export const servedUrl = /Postillion serves (\S+)\/v1/;

/**
 * What a test has started is killed when the test is over. Call it after `useTestDatabase`: hooks that clean up run in
 * the opposite order, and the database would else be removed under a running program.
 */
export function usePrograms(): Programs {
  const running = new Set<ChildProcess>();
  afterEach(async () => {
    for (const child of running) {
      const exit = once(child, 'exit');
      child.kill('SIGKILL');
      await exit;
    }
  });
  const start: Programs['start'] = (settings, words, more = {}) => {
    const { input = '', nodeOptions = [], runtime = process.execPath, entry = program } = more;
    const child = spawn(runtime, [...nodeOptions, entry, ...words], {
      env: { PATH: process.env.PATH, ...settings },
      cwd: more.directory,
    });
    running.add(child);
    child.once('exit', () => running.delete(child));
    // It may end before it has read everything.
    child.stdin.on('error', () => undefined);
    child.stdin.end(input);
    const streams = { output: child.stdout, errors: child.stderr };
    const said = { output: '', errors: '' };
    for (const where of ['output', 'errors'] as const) {
      streams[where].setEncoding('utf8');
      streams[where].on('data', (chunk: string) => (said[where] += chunk));
    }
    const ended = once(child, 'close').then(() => ({ exitCode: child.exitCode, ...said }));
    return {
      child,
      said,
      untilSaid: (where, pattern) =>
        new Promise((resolve) => {
          const look = () => {
            const found = pattern.exec(said[where]);
            if (found !== null) resolve(found);
          };
          streams[where].on('data', look);
          void ended.then(() => {
            resolve(null);
          });
          look();
        }),
      ended,
    };
  };
  return { start, run: (settings, ...words) => start(settings, words).ended };
}
