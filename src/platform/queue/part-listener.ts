import type { Clock } from '../clock.ts';
import type { Log } from '../log.ts';
import type { Database } from '../postgres/database.ts';
import { createWakeup, type Wakeup } from '../wakeup.ts';
import { listenForWakes, type WakeTopic } from './wake.ts';

/** Resolves with false at the next notification, or with true after `timeoutMs` without one. */
export type WaitForWake = Wakeup['wait'];

/** Hears for many at once, each of whom waits for notifications about one part of a topic. */
export type PartListener = {
  /**
   * Runs `work`, which may wait for notifications about the part. None that is sent from the call on is missed: while it is
   * not known what was, and after each time that the connection was lost, a wait ends as if there had been one.
   */
  whileHearing: <Result>(part: string, work: (wait: WaitForWake) => Promise<Result>) => Promise<Result>;
  /** Ends all waits as if their time were over, and those to come at once: the process is stopping. */
  stop: () => void;
};

/** Opens one connection for all who wait in this process, and only while there is somebody. */
export function createPartListener(
  tools: { database: Database; clock: Clock; log: Log },
  topic: WakeTopic,
): PartListener {
  const waiting = new Map<string, Set<Wakeup>>();
  let stopping: AbortController | null = null;
  let isStopped = false;

  const wake = (part: string | null) => {
    const woken = part === null ? [...waiting.values()] : [waiting.get(part) ?? []];
    for (const wakeups of woken) for (const wakeup of wakeups) wakeup.wake();
  };
  const enter = (part: string, wakeup: Wakeup) => {
    const others = waiting.get(part);
    if (others === undefined) waiting.set(part, new Set([wakeup]));
    else others.add(wakeup);
    if (stopping !== null) return;
    stopping = new AbortController();
    void listenForWakes(tools, topic, stopping.signal, wake);
  };
  const leave = (part: string, wakeup: Wakeup) => {
    const others = waiting.get(part);
    others?.delete(wakeup);
    if (others?.size === 0) waiting.delete(part);
    if (waiting.size > 0) return;
    stopping?.abort();
    stopping = null;
  };

  return {
    whileHearing: async (part, work) => {
      const wakeup = createWakeup(tools.clock);
      enter(part, wakeup);
      try {
        return await work(async (timeoutMs) => isStopped || (await wakeup.wait(timeoutMs)) || isStopped);
      } finally {
        leave(part, wakeup);
      }
    },
    stop: () => {
      isStopped = true;
      wake(null);
    },
  };
}
