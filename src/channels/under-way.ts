/** The hand-offs that a provider has under way: limited in number, and all of them ended before it closes. */
export type UnderWay = {
  /** Begins the work once there is a place for it. */
  run: <Result>(work: () => Promise<Result>) => Promise<Result>;
  /** Resolves once nothing is under way, nor waiting for a place. */
  end: () => Promise<void>;
};

/** What waits is not limited: a worker hands off no more than its provider's concurrency, and a test little more. */
export function createUnderWay(placesMax: number): UnderWay {
  const waiting: (() => void)[] = [];
  let places = placesMax;
  let size = 0;
  let onIdle: (() => void)[] = [];

  const takePlace = (): Promise<void> => {
    if (places > 0) {
      places -= 1;
      return Promise.resolve();
    }
    return new Promise((resolve) => {
      waiting.push(resolve);
    });
  };
  /** The one that has waited longest gets the place at once. */
  const freePlace = () => {
    const next = waiting.shift();
    if (next === undefined) places += 1;
    else next();
  };
  const leave = () => {
    freePlace();
    size -= 1;
    if (size > 0) return;
    for (const resolve of onIdle) resolve();
    onIdle = [];
  };

  return {
    run: async (work) => {
      size += 1;
      await takePlace();
      try {
        return await work();
      } finally {
        leave();
      }
    },
    end: async () => {
      // Ends because a provider that is closing begins nothing more.
      while (size > 0) await new Promise<void>((resolve) => onIdle.push(resolve));
    },
  };
}
