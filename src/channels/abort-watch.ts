/** Listening to an abort signal that many hand-offs share: a worker gives all of its hand-offs the same one. */
export type AbortWatch = {
  /** Calls `onAbort` once if the signal aborts; the returned function removes it. */
  watch: (signal: AbortSignal, onAbort: () => void) => () => void;
};

/** Puts one listener on each signal, however many callbacks there are: thousands on one signal are slow to remove. */
export function createAbortWatch(): AbortWatch {
  const watched = new Map<AbortSignal, { callbacks: Set<() => void>; listener: () => void }>();
  return {
    watch: (signal, onAbort) => {
      const known = watched.get(signal);
      const callbacks = known?.callbacks ?? new Set();
      // A function of its own, since the caller may watch twice with the same one.
      const callback = () => {
        onAbort();
      };
      callbacks.add(callback);
      if (known === undefined) {
        const listener = () => {
          for (const each of callbacks) each();
        };
        signal.addEventListener('abort', listener);
        watched.set(signal, { callbacks, listener });
      }
      return () => {
        if (!callbacks.delete(callback) || callbacks.size > 0) return;
        const last = watched.get(signal);
        if (last?.callbacks !== callbacks) return;
        signal.removeEventListener('abort', last.listener);
        watched.delete(signal);
      };
    },
  };
}

/** What a hand-off fails with when its signal aborts. */
export function abortReason(signal: AbortSignal): Error {
  return signal.reason instanceof Error ? signal.reason : new Error('the hand-off was aborted');
}

/** What `work` comes to, or a rejection once the signal aborts. The work itself goes on: others may wait for it too. */
export async function untilAborted<Result>(
  abortWatch: AbortWatch,
  signal: AbortSignal,
  work: Promise<Result>,
): Promise<Result> {
  let unwatch = (): void => undefined;
  const aborted = new Promise<never>((_resolve, reject) => {
    const onAbort = () => {
      reject(abortReason(signal));
    };
    if (signal.aborted) onAbort();
    else unwatch = abortWatch.watch(signal, onAbort);
  });
  try {
    return await Promise.race([aborted, work]);
  } finally {
    unwatch();
  }
}
