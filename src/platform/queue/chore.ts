import { createWakeup } from '../wakeup.ts';
import { type Clock, sleep } from '../clock.ts';
import type { Log } from '../log.ts';
import type { Database } from '../postgres/database.ts';
import { listenForWakes, type WakeTopic } from './wake.ts';

export type ChoreTools = { database: Database; clock: Clock; log: Log };

export type Chore = {
  /** Names it in the log. */
  name: string;
  /** Notified by everything that makes work for it. */
  topic: WakeTopic;
  /** Does a bounded piece of work, and says when there is more; null where only a notification will say so. */
  work: (signal: AbortSignal) => Promise<'at once' | Date | null>;
};

export type RunningChore = {
  /** Makes it look for work if it is asleep. */
  wake: () => void;
  stop: () => Promise<void>;
};

/** In case a notification is lost. */
const idleMs = 60_000;
const pauseAfterFailureMs = 5_000;

/** Does a chore again and again until it is stopped, sleeping until there is more or a notification comes. */
export function startChore(tools: ChoreTools, chore: Chore): RunningChore {
  const stopping = new AbortController();
  const wakeup = createWakeup(tools.clock);
  const listening = listenForWakes(tools, chore.topic, stopping.signal, wakeup.wake);
  const working = (async () => {
    while (!stopping.signal.aborted) {
      try {
        const pauseMs = pauseUntil(tools.clock, await chore.work(stopping.signal));
        if (pauseMs > 0) await wakeup.wait(Math.min(pauseMs, idleMs));
      } catch (cause) {
        if (stopping.signal.aborted) break;
        tools.log.warn({ err: cause, chore: chore.name }, 'a chore was interrupted');
        // Not a wait for the wakeup: each notification of new work would have what always fails tried again at once.
        await sleep(tools.clock, pauseAfterFailureMs, stopping.signal).catch(ignore);
      }
    }
  })();
  return {
    wake: wakeup.wake,
    stop: async () => {
      stopping.abort(new Error(`${chore.name} is stopping`));
      wakeup.wake();
      await Promise.all([listening, working]);
    },
  };
}

/** What is due and was not done is in work on another node, or cannot be done now: looking again at once would spin. */
const overduePauseMs = 100;

/** Timers may ring a little early, when nothing would be due yet. */
function pauseUntil(clock: Clock, nextAt: 'at once' | Date | null): number {
  if (nextAt === 'at once') return 0;
  if (nextAt === null) return idleMs;
  const remainingMs = nextAt.getTime() - clock.nowMs();
  return remainingMs > 0 ? remainingMs + 1 : overduePauseMs;
}

function ignore(): void {
  // A pause that is cut short is over.
}
