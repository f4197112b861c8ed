import { createBatcher } from '../../platform/batcher.ts';
import { type Clock, dateOf } from '../../platform/clock.ts';
import type { Log } from '../../platform/log.ts';
import {
  type Database,
  DatabaseUnavailableError,
  type Transaction,
} from '../../platform/postgres/database.ts';
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

/** Pauses between attempts to apply an event that cannot be applied yet. */
const pausesMs = [100, 400, 1_500, 10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000] as const;

/**
 * When an event is looked at again after so many attempts; null after the last one. An event whose message is still
 * unknown after half a day belongs to no message of this installation.
 */
export function nextLookAt(clock: Clock, attempts: number): Date | null {
  const pauseMs = pausesMs[attempts];
  return pauseMs === undefined ? null : dateOf(dueAfterMs(clock.nowMs(), pauseMs));
}
