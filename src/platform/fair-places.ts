import type { Clock } from './clock.ts';

/**
 * A number of places, such as the connections of a pool, for holders who take one at a time and may want many: the
 * requests of an organization, for instance. Where there are none left, holders are served in turns, and not in the order
 * in which they came: whoever has nothing first, else whoever has had no turn for the longest. And none may have all of
 * them: one is left for others, so that a request which takes microseconds waits for nobody's that takes a second.
 */
export type FairPlaces = {
  /**
   * Resolves with a function that gives the place back, to be called once; with null if there was none for `waitMaxMs`.
   * The holder `null` is whatever serves all of them: it may have every place.
   */
  take: (holder: string | null) => Promise<(() => void) | null>;
  /** How many wait. */
  waiting: () => number;
};

type Waiter = { serve: () => void };

export function createFairPlaces(
  clock: Clock,
  { placesMax, waitMaxMs }: { placesMax: number; waitMaxMs: number },
): FairPlaces {
  const ownMax = Math.max(placesMax - 1, 1);
  const heldBy = new Map<string | null, number>();
  /** Holders in the order of their last turns, each with those of its own who wait, in the order in which they came. */
  const queues = new Map<string | null, Set<Waiter>>();
  let taken = 0;
  let waiting = 0;

  const ownOf = (holder: string | null) => heldBy.get(holder) ?? 0;
  const hasRoomFor = (holder: string | null) =>
    taken < placesMax && (holder === null || ownOf(holder) < ownMax);

  const occupy = (holder: string | null) => {
    taken += 1;
    heldBy.set(holder, ownOf(holder) + 1);
    return () => {
      taken -= 1;
      if (ownOf(holder) > 1) heldBy.set(holder, ownOf(holder) - 1);
      else heldBy.delete(holder);
      serveNext();
    };
  };

  /** Ends soon: only as many holders have something as there are places. */
  const findNext = (): string | null | undefined => {
    let next: string | null | undefined;
    for (const holder of queues.keys()) {
      if (ownOf(holder) === 0) return holder;
      if (next === undefined && hasRoomFor(holder)) next = holder;
    }
    return next;
  };

  const serveNext = () => {
    if (taken >= placesMax) return;
    const holder = findNext();
    const queue = holder === undefined ? undefined : queues.get(holder);
    if (holder === undefined || queue === undefined) return;
    const [first] = queue;
    queues.delete(holder);
    if (first === undefined) return;
    queue.delete(first);
    if (queue.size > 0) queues.set(holder, queue);
    first.serve();
  };

  return {
    take: (holder) => {
      // Whoever comes later goes before none of its own.
      if (hasRoomFor(holder) && !queues.has(holder)) return Promise.resolve(occupy(holder));
      return new Promise((resolve) => {
        const queue = queues.get(holder) ?? new Set();
        queues.set(holder, queue);
        const waiter: Waiter = {
          serve: () => {
            cancel();
            waiting -= 1;
            resolve(occupy(holder));
          },
        };
        const cancel = clock.after(waitMaxMs, () => {
          waiting -= 1;
          queue.delete(waiter);
          if (queue.size === 0) queues.delete(holder);
          resolve(null);
        });
        queue.add(waiter);
        waiting += 1;
      });
    },
    waiting: () => waiting,
  };
}
