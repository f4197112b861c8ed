/**
 * Keeps in the database which breakers of a worker are open, for those who look at the installation from outside: a
 * worker's memory is its own. What is written is the state and not the change, at most once a second, and again until
 * it could be written; it goes with the worker's row. While something is open it is looked at now and then: a breaker
 * that nobody tries any more, or that was forgotten for others, ends without a change.
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

/** With less, a worker writes more while a provider is away; with more, what has ended without a change is told on. */
export const lookMs = 5 * 60_000;

export function openBreakerNotes(
  { database, clock, log }: { database: Database; clock: Clock; log: Log },
  epoch: number,
  signal: AbortSignal,
): BreakerNotes {
  const changed = new Set<NotedChannel>();
  const openedAt = new Map<NotedChannel, Date>();
  const looks = new Map<NotedChannel, () => void>();
  let isWriting = false;
  let hasFailed = false;
  const endLook = (noted: NotedChannel) => {
    looks.get(noted)?.();
    looks.delete(noted);
  };
  signal.addEventListener('abort', () => [...looks.keys()].forEach(endLook), { once: true });

  const write = async (noted: NotedChannel) => {
    const { channel, provider, breakers } = noted;
    endLook(noted);
    const open = breakers.countTold();
    if (open === 0) {
      openedAt.delete(noted);
      await deleteOpenBreaker(database, epoch, channel.name);
      return;
    }
    const since = openedAt.get(noted) ?? now(clock);
    openedAt.set(noted, since);
    const accounts = breakers.accountOf === null ? null : open;
    await keepOpenBreaker(database, epoch, { channel: channel.name, provider, accounts, openedAt: since });
    if (signal.aborted) return;
    const look = () => {
      noteChange(noted);
    };
    looks.set(noted, clock.after(lookMs, look));
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
        hasFailed = false;
      } catch (cause) {
        // It is delivered all the same, and others say that the database is away. What always fails is told once.
        if (!(cause instanceof DatabaseUnavailableError)) {
          if (!hasFailed)
            log.warn({ err: cause, channel: noted.channel.name }, 'an open breaker cannot be noted');
          hasFailed = true;
        }
        changed.add(noted);
      }
      await sleep(clock, pauseMs, signal).catch(() => undefined);
    }
  };

  const noteChange = (noted: NotedChannel) => {
    changed.add(noted);
    if (isWriting) return;
    isWriting = true;
    void writeChanged();
  };
  return { noteChange };
}
