import { createBatcher } from '../../platform/batcher.ts';
import { type Clock, dateOf, now } from '../../platform/clock.ts';
import type { Log } from '../../platform/log.ts';
import {
  type Connection,
  type Database,
  DatabaseUnavailableError,
  type Transaction,
} from '../../platform/postgres/database.ts';
import { tryLockName } from '../../platform/postgres/name-locks.ts';
import { dueAfterMs } from '../delivery/retry.ts';

/**
 * Events from providers are stored before they are acknowledged, and applied afterwards by a chore. An event that cannot
 * be applied yet is put back and looked at again later. An event that can never be applied delays no other.
 */

export type StoringTools<Event> = {
  store: (events: readonly Event[]) => Promise<void>;
  /** Called after each commit. */
  onStored: () => void;
  /** Smaller in tests. */
  storedMax?: number;
  waitingMax?: number;
};

/** Events that are stored in one statement. */
const defaultStoredMax = 500;
/** Events waiting to be stored. More are refused, and the provider sends them again later. */
const defaultWaitingMax = 10_000;

/** Returns a function that resolves when its event is stored, and rejects if it cannot be. */
export function createStoring<Event>(tools: StoringTools<Event>): (event: Event) => Promise<void> {
  const { store, onStored, storedMax = defaultStoredMax, waitingMax = defaultWaitingMax } = tools;
  const batcher = createBatcher<Event, undefined>({
    itemsMax: storedMax,
    concurrency: 2,
    run: async (events) => {
      await store(events);
      onStored();
      return events.map(() => undefined);
    },
  });
  return async (event) => {
    if (batcher.size() >= waitingMax) throw new Error('too many events of a provider wait to be stored');
    await batcher.add(event);
  };
}

/** Events that are applied in one transaction, unless a test wants less. */
export const defaultAppliedMax = 500;

/** `elsewhere`: another node is applying such events. */
export type Taken = number | 'elsewhere';

export type Applying<Event> = {
  /** What the events are called in the log. */
  name: string;
  appliedMax: number;
  /** Takes up to so many due events and applies them in one transaction. Returns how many it has looked at. */
  apply: (eventsMax: number) => Promise<Taken>;
  /** Takes the next due event; null if another node is applying such events. */
  takeNext: (transaction: Transaction) => Promise<readonly Event[] | null>;
  putBack: (transaction: Transaction, events: readonly Event[]) => Promise<void>;
};

/** Returns how many events were looked at. An event that would make the others fail is put back on its own. */
export async function applyDueEvents<Event>(
  tools: { database: Database; log: Log },
  applying: Applying<Event>,
): Promise<Taken> {
  const { name, appliedMax, apply } = applying;
  try {
    return await apply(appliedMax);
  } catch (cause) {
    if (cause instanceof DatabaseUnavailableError) throw cause;
    tools.log.warn({ err: cause }, `${name} are applied one by one`);
    let taken = 0;
    while (taken < appliedMax && (await applyNext(tools, applying))) taken += 1;
    return taken;
  }
}

async function applyNext<Event>(
  { database, log }: { database: Database; log: Log },
  { name, apply, takeNext, putBack }: Applying<Event>,
): Promise<boolean> {
  try {
    return (await apply(1)) === 1;
  } catch (cause) {
    if (cause instanceof DatabaseUnavailableError) throw cause;
    await database.transaction(async (transaction) => {
      await putBack(transaction, (await takeNext(transaction)) ?? []);
    });
    log.error({ err: cause }, `one of ${name} cannot be applied`);
    return true;
  }
}

export type InOrder<Event, Applied> = {
  /** What the events are called in the log. */
  name: string;
  /** Names what only one node may do at a time. */
  lockName: string;
  appliedMax: number;
  takeDue: (transaction: Transaction, at: Date, eventsMax: number) => Promise<Event[]>;
  apply: (transaction: Transaction, events: readonly Event[]) => Promise<Applied>;
  /** Called after each commit. */
  onApplied: (applied: Applied) => void;
  putBack: (transaction: Transaction, events: readonly Event[]) => Promise<void>;
  findNextAt: (connection: Connection) => Promise<Date | null>;
};

/**
 * Applies due events in the order in which they came, on one node at a time: of START and STOP the last one counts, and
 * two nodes that change the same contacts in different orders would deadlock. Returns what a chore wants to know: when
 * there is more.
 */
export async function applyInOrder<Event, Applied>(
  tools: { database: Database; clock: Clock; log: Log },
  { lockName, takeDue, apply, onApplied, findNextAt, ...applying }: InOrder<Event, Applied>,
): Promise<'at once' | Date | null> {
  const takeInTurn = async (transaction: Transaction, eventsMax: number) =>
    (await tryLockName(transaction, lockName)) ? takeDue(transaction, now(tools.clock), eventsMax) : null;
  const taken = await applyDueEvents<Event>(tools, {
    ...applying,
    apply: async (eventsMax) => {
      const done = await tools.database.transaction(async (transaction) => {
        const events = await takeInTurn(transaction, eventsMax);
        return events && { taken: events.length, applied: await apply(transaction, events) };
      });
      if (done === null) return 'elsewhere';
      onApplied(done.applied);
      return done.taken;
    },
    takeNext: (transaction) => takeInTurn(transaction, 1),
  });
  // Events that another node is applying are still due: without a pause they would be asked for again and again.
  if (taken === 'elsewhere') return dateOf(tools.clock.nowMs() + elsewherePauseMs);
  return taken > 0 ? 'at once' : findNextAt(tools.database);
}

/**
 * If shorter, idle nodes query constantly. If longer, events that arrive while another node applies the rest wait
 * longer.
 */
const elsewherePauseMs = 200;

/** Pauses between attempts to apply an event that cannot be applied yet. */
const pausesMs = [100, 400, 1_500, 10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000] as const;

/**
 * When events that cannot be applied yet are looked at again. Those that had their last attempt are dropped: what is of
 * an unknown message after half a day is of none of this installation.
 */
export function planNextLooks<Event extends { attempts: number }>(
  clock: Clock,
  events: readonly Event[],
  onDropped: (event: Event) => void,
): (Event & { dueAt: Date })[] {
  return events.flatMap((event) => {
    const pauseMs = pausesMs[event.attempts];
    if (pauseMs === undefined) {
      onDropped(event);
      return [];
    }
    return [{ ...event, attempts: event.attempts + 1, dueAt: dateOf(dueAfterMs(clock.nowMs(), pauseMs)) }];
  });
}
