import { createWakeup } from '../wakeup.ts';
import { type Clock, sleep } from '../clock.ts';
import type { Log } from '../log.ts';
import type { Database } from '../postgres/database.ts';
import { listenForWakes, type WakeTopic } from './wake.ts';

export type ChoreTools = { database: Database; clock: Clock; log: Log };

/** All chores, by their names in the log. How each of them serves organizations in turns is a test's total map. */
export const choreNames = [
  'advancing campaigns',
  'applying texts that came in',
  'applying what providers of chat-app messages told',
  'applying what providers reported',
  'beginning campaigns',
  'chat-app templates',
  'checking domains',
  'clearing up after deletions',
  'computing segments',
  'counting recipients',
  'crediting conversions',
  'erasing addresses',
  'following changes',
  'numbering events',
  'secret keys',
  'sending alerts',
  'telling of quotas',
  'telling webhooks',
] as const;

export type ChoreName = (typeof choreNames)[number];

export type Chore = {
  name: ChoreName;
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
export function startChore(tools: ChoreTools, { work, ...chore }: Chore): RunningChore {
  return startChoreInPlaces(tools, { ...chore, places: [work] });
}

export type ChoreInPlaces = Omit<Chore, 'work'> & { places: readonly Chore['work'][] };

/** The same for works that go on beside each other, and that are woken together. */
export function startChoreInPlaces(tools: ChoreTools, { name, topic, places }: ChoreInPlaces): RunningChore {
  const stopping = new AbortController();
  const workers = places.map((work) => ({ work, wakeup: createWakeup(tools.clock) }));
  const wake = () => {
    for (const { wakeup } of workers) wakeup.wake();
  };
  const listening = listenForWakes(tools, topic, stopping.signal, wake);
  const working = workers.map(async ({ work, wakeup }) => {
    while (!stopping.signal.aborted) {
      try {
        const pauseMs = pauseUntil(tools.clock, await work(stopping.signal));
        if (pauseMs > 0) await wakeup.wait(Math.min(pauseMs, idleMs));
      } catch (cause) {
        if (stopping.signal.aborted) break;
        tools.log.warn({ err: cause, chore: name }, 'a chore was interrupted');
        // Not a wait for the wakeup: each notification of new work would have what always fails tried again at once.
        await sleep(tools.clock, pauseAfterFailureMs, stopping.signal).catch(ignore);
      }
    }
  });
  return {
    wake,
    stop: async () => {
      stopping.abort(new Error(`${name} is stopping`));
      wake();
      await Promise.all([listening, ...working]);
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
