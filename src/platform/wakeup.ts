import type { Clock } from './clock.ts';

/** Ends waits. A call while there is no wait is remembered, and ends the next wait at once. */
export type Wakeup = {
  wake: () => void;
  /** Resolves with false at the next `wake`, or with true after `timeoutMs` without one. */
  wait: (timeoutMs: number) => Promise<boolean>;
};

export function createWakeup(clock: Clock): Wakeup {
  let waiters = new Set<() => void>();
  let isWoken = false;
  return {
    wake: () => {
      isWoken = waiters.size === 0;
      const woken = waiters;
      waiters = new Set();
      for (const end of woken) end();
    },
    wait: (timeoutMs) =>
      new Promise((resolve) => {
        if (isWoken) {
          isWoken = false;
          resolve(false);
          return;
        }
        const cancel = clock.after(timeoutMs, () => {
          waiters.delete(end);
          resolve(true);
        });
        const end = () => {
          cancel();
          resolve(false);
        };
        waiters.add(end);
      }),
  };
}
