import type { Clock } from './clock.ts';

/**
 * Turns many small waits into few shared ones: items that are added while a batch is being carried out go into the
 * next one together. Unless lingering is asked for, nothing waits on a timer, and with one caller at a time every batch
 * has one item.
 */
export type Batcher<Item, Result> = {
  /** Resolves with this item's own result once its batch has been carried out; rejects if the batch did. */
  add: (item: Item) => Promise<Result>;
  /** How many items wait or are under way. */
  size: () => number;
  /** Holds no batch open for more until all that waits by now has begun. */
  hurry: () => void;
  /** Resolves when nothing waits and nothing is under way. From then on no batch is held open for more. */
  drain: () => Promise<void>;
};

export type BatcherOptions<Item, Result> = {
  /** Larger batches cost memory and lengthen the wait of their first item; smaller ones share less. */
  itemsMax: number;
  /** Batches under way at once, each on a connection of its own. */
  concurrency: number;
  /** Where batches are worth a wait: how long one with less than enough is held open for more, also beside others. */
  linger?: { clock: Clock; lingerMs: number; itemsEnough: number };
  /** Must return one result an item, in their order. */
  run: (items: Item[]) => Promise<readonly Result[]>;
};

type Waiting<Item, Result> = {
  item: Item;
  resolve: (result: Result) => void;
  reject: (cause: unknown) => void;
};

export function createBatcher<Item, Result>(options: BatcherOptions<Item, Result>): Batcher<Item, Result> {
  let waiting: Waiting<Item, Result>[] = [];
  let isScheduled = false;
  let running = 0;
  let underWay = 0;
  let onIdle: (() => void)[] = [];
  let isDraining = false;
  let hurried = 0;
  let stopLingering: () => void = () => undefined;

  const carryOut = async (batch: Waiting<Item, Result>[]) => {
    try {
      const results = await options.run(batch.map(({ item }) => item));
      if (results.length !== batch.length) throw new Error('a batch must give one result an item');
      batch.forEach(({ resolve }, index) => {
        resolve(results[index] as Result); // The lengths are equal, so there is one.
      });
    } catch (cause) {
      for (const { reject } of batch) reject(cause);
    }
  };

  const start = () => {
    isScheduled = false;
    stopLingering();
    while (running < options.concurrency && waiting.length > 0) {
      const batch = waiting.slice(0, options.itemsMax);
      waiting = waiting.slice(options.itemsMax);
      hurried = Math.max(0, hurried - batch.length);
      running += 1;
      underWay += batch.length;
      void carryOut(batch).then(() => {
        running -= 1;
        underWay -= batch.length;
        if (options.linger !== undefined) schedule();
        else if (!isScheduled) start();
        if (waiting.length === 0 && running === 0) {
          for (const resolve of onIdle) resolve();
          onIdle = [];
        }
      });
    }
  };

  const schedule = () => {
    if (waiting.length === 0 || running >= options.concurrency) return;
    const isUrgent = isDraining || hurried > 0;
    if (options.linger !== undefined && (isUrgent || waiting.length >= options.linger.itemsEnough)) {
      start();
      return;
    }
    if (isScheduled) return;
    isScheduled = true;
    if (options.linger !== undefined) {
      stopLingering = options.linger.clock.after(options.linger.lingerMs, start);
    } else {
      // All that arrive in the same turn of the event loop share the batch.
      setImmediate(start);
    }
  };

  return {
    add: (item) =>
      new Promise<Result>((resolve, reject) => {
        waiting.push({ item, resolve, reject });
        schedule();
      }),
    size: () => waiting.length + underWay,
    hurry: () => {
      hurried = waiting.length;
      schedule();
    },
    drain: () => {
      isDraining = true;
      schedule();
      return waiting.length === 0 && running === 0
        ? Promise.resolve()
        : new Promise((resolve) => {
            onIdle.push(resolve);
          });
    },
  };
}
