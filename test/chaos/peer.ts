import { fork } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import path from 'node:path';

/** A stand-in for something outside, in a process of its own, whose log is what the truth is compared with. */
export type Peer<Said, Line> = {
  /** What it said when it was ready. */
  first: Said;
  /** Resolves with what it says next. */
  ask: (order: object) => Promise<Said>;
  readLog: () => Promise<Line[]>;
  stop: () => Promise<void>;
};

/** Starts the program of this name; its first argument is the log. */
export async function startPeer<Said, Line>(
  name: string,
  logFile: string,
  moreArguments: readonly string[] = [],
): Promise<Peer<Said, Line>> {
  const program = path.join(import.meta.dirname, `${name}-process.ts`);
  const child = fork(program, [logFile, ...moreArguments], { execArgv: ['--import', 'tsx'] });
  const next = () =>
    new Promise<Said>((resolve, reject) => {
      child.once('message', resolve);
      child.once('exit', () => {
        reject(new Error(`${name} has ended`));
      });
    });
  return {
    first: await next(),
    ask: (order) => {
      const said = next();
      child.send(order);
      return said;
    },
    readLog: async () =>
      (await readFile(logFile, 'utf8'))
        .split('\n')
        .filter((line) => line !== '')
        .map((line) => JSON.parse(line) as Line),
    stop: async () => {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
    },
  };
}
