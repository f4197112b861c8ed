/** Lets a limited number through at once; the others wait in their order, and their number is limited, too. */
export type Gate = {
  /** Resolves to what frees the place again, to `full` when too many wait, or to `aborted` with the signal. */
  enter: (signal: AbortSignal) => Promise<(() => void) | 'full' | 'aborted'>;
};

export function createGate({ placesMax, waitingMax }: { placesMax: number; waitingMax: number }): Gate {
  let taken = 0;
  const waiting = new Set<() => void>();

  const leave = () => {
    taken -= 1;
    // A set keeps its order, and forgets an aborted waiter without a search.
    const next = waiting.values().next().value;
    next?.();
  };
  const takePlace = (): (() => void) => {
    taken += 1;
    let isHeld = true;
    return () => {
      if (isHeld) leave();
      isHeld = false;
    };
  };

  return {
    enter: (signal) => {
      if (signal.aborted) return Promise.resolve('aborted');
      if (taken < placesMax) return Promise.resolve(takePlace());
      if (waiting.size >= waitingMax) return Promise.resolve('full');
      return new Promise((resolve) => {
        const onAbort = () => {
          waiting.delete(admit);
          resolve('aborted');
        };
        const admit = () => {
          waiting.delete(admit);
          signal.removeEventListener('abort', onAbort);
          resolve(takePlace());
        };
        waiting.add(admit);
        signal.addEventListener('abort', onAbort, { once: true });
      });
    },
  };
}
