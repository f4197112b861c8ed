/**
 * Keeps in the database which breakers of a worker are open, for those who look at the installation from outside: a
 * worker's memory is its own. What is written is the state and not the change, at most once a second, and again until
 * it could be written; it goes with the worker's row.
 */
import { type Clock, now, sleep } from '../../platform/clock.ts';
import type { Log } from '../../platform/log.ts';
import { type Database, DatabaseUnavailableError } from '../../platform/postgres/database.ts';
import type { MessageChannel } from '../channel.ts';
import type { Breakers } from './breaker.ts';
import { deleteOpenBreaker, keepOpenBreaker } from './breaker-store.ts';

type NotedChannel = { channel: MessageChannel; provider: string; breakers: Breakers };

export type BreakerNotes = {
  /** A breaker of the channel has opened or closed. */
  noteChange: (changed: NotedChannel) => void;
};

/** With less, accounts that come and go make many writes; with more, whoever is to be woken sleeps on. */
const pauseMs = 1_000;

export function openBreakerNotes(
  { database, clock, log }: { database: Database; clock: Clock; log: Log },
  epoch: number,
  signal: AbortSignal,
): BreakerNotes {
  const changed = new Set<NotedChannel>();
  const openedAt = new Map<NotedChannel, Date>();
  let isWriting = false;

  const write = async (noted: NotedChannel) => {
    const { channel, provider, breakers } = noted;
    const open = breakers.countOpen();
    if (open === 0) {
      openedAt.delete(noted);
      await deleteOpenBreaker(database, epoch, channel.name);
      return;
    }
    const since = openedAt.get(noted) ?? now(clock);
    openedAt.set(noted, since);
    const accounts = breakers.accountOf === null ? null : open;
    await keepOpenBreaker(database, epoch, { channel: channel.name, provider, accounts, openedAt: since });
  };

  /** Ends when all is written, or the worker ends. */
  const writeChanged = async () => {
    for (;;) {
      const [noted] = changed;
      if (noted === undefined || signal.aborted) {
        // At once: what changes before a promise of the end is kept would wait for the next change.
        isWriting = false;
        return;
      }
      changed.delete(noted);
      try {
        await write(noted);
      } catch (cause) {
        // It is delivered all the same, and others say that the database is away.
        if (!(cause instanceof DatabaseUnavailableError))
          log.warn({ err: cause, channel: noted.channel.name }, 'an open breaker cannot be noted');
        changed.add(noted);
      }
      await sleep(clock, pauseMs, signal).catch(() => undefined);
    }
  };

  return {
    noteChange: (noted) => {
      changed.add(noted);
      if (isWriting) return;
      isWriting = true;
      void writeChanged();
    },
  };
}
