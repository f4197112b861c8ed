import { createBell } from '../bell.ts';
import type { Clock } from '../clock.ts';
import type { Log } from '../log.ts';
import type { Database } from '../postgres/database.ts';
import { listenForWakes } from './wake.ts';

export type ChoreTools = { database: Database; clock: Clock; log: Log };

export type Chore = {
  /** Names it in the log. */
  name: string;
  /** The channel on which whoever makes work for it notifies. */
  channel: string;
  /** Does a bounded piece of work, and says when there is more; null where only a notification would tell. */
  work: (signal: AbortSignal) => Promise<'at once' | Date | null>;
};

export type RunningChore = {
  /** Has it look for work, should it be asleep. */
  wake: () => void;
  stop: () => Promise<void>;
};

/** Should a notification be lost. */
const idleMs = 60_000;
const pauseAfterFailureMs = 5_000;

/** Does a chore again and again until it is stopped, sleeping until there is more or somebody notifies. */
export function startChore(tools: ChoreTools, chore: Chore): RunningChore {
  const stopping = new AbortController();
  const bell = createBell(tools.clock);
  const listening = listenForWakes(tools, chore.channel, stopping.signal, bell.ring);
  const working = (async () => {
    while (!stopping.signal.aborted) {
      let pauseMs = pauseAfterFailureMs;
      try {
        pauseMs = pauseUntil(tools.clock, await chore.work(stopping.signal));
      } catch (cause) {
        if (!stopping.signal.aborted) {
          tools.log.warn({ err: cause, chore: chore.name }, 'a chore was interrupted');
        }
      }
      if (pauseMs > 0) await bell.wait(Math.min(pauseMs, idleMs));
    }
  })();
  return {
    wake: bell.ring,
    stop: async () => {
      stopping.abort(new Error(`${chore.name} is stopping`));
      bell.ring();
      await Promise.all([listening, working]);
    },
  };
}

/** Timers may ring a little early, when nothing would be due yet. */
function pauseUntil(clock: Clock, nextAt: 'at once' | Date | null): number {
  if (nextAt === 'at once') return 0;
  return nextAt === null ? idleMs : Math.max(nextAt.getTime() - clock.nowMs(), 0) + 1;
}
