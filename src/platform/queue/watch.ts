import type { Clock } from '../clock.ts';
import type { Log } from '../log.ts';
import type { Database } from '../postgres/database.ts';
import { listenForWakes, type WakeTopic } from './wake.ts';

/**
 * Lets requests of a process wait for notifications of a topic, all by one connection, which is opened when the first of
 * them waits.
 */
export type Watch = {
  /** To be begun before it is looked whether there is anything: what is notified after that ends the wait. */
  begin: (part: string) => Wait;
  /** Ends all waits, and those that are begun later. */
  stop: () => Promise<void>;
};

export type Wait = {
  /**
   * Resolves at a notification that may be about the part, or after this time; with false once the watch is stopped, when
   * there is no use in waiting any more.
   */
  until: (timeoutMs: number) => Promise<boolean>;
  /** To be called in any case. */
  end: () => void;
};

export function createWatch(tools: { database: Database; clock: Clock; log: Log }, topic: WakeTopic): Watch {
  const stopping = new AbortController();
  const waits = new Set<{ part: string; notify: () => void }>();
  let listening: Promise<void> | null = null;

  const wake = (part: string | null) => {
    for (const wait of waits) if (part === null || part === wait.part) wait.notify();
  };
  const listen = () => {
    listening ??= listenForWakes(tools, topic, stopping.signal, wake);
  };

  return {
    begin: (part) => {
      listen();
      let isNotified = false;
      let resolve: (() => void) | null = null;
      const wait = {
        part,
        notify: () => {
          isNotified = true;
          resolve?.();
        },
      };
      waits.add(wait);
      return {
        until: async (timeoutMs) => {
          if (!isNotified && !stopping.signal.aborted) {
            await new Promise<void>((end) => {
              const cancel = tools.clock.after(timeoutMs, end);
              resolve = () => {
                cancel();
                end();
              };
            });
          }
          isNotified = false;
          resolve = null;
          return !stopping.signal.aborted;
        },
        end: () => {
          waits.delete(wait);
        },
      };
    },
    stop: async () => {
      stopping.abort(new Error('the server is stopping'));
      wake(null);
      await listening;
    },
  };
}
