import type { Clock } from './clock.ts';

/** Wakes whoever waits; a ring while nobody waits is remembered for the next one. */
export type Bell = {
  ring: () => void;
  /** Resolves at the next ring with false, or with true after `timeoutMs` without one. */
  wait: (timeoutMs: number) => Promise<boolean>;
};

export function createBell(clock: Clock): Bell {
  let waiters = new Set<() => void>();
  let isRung = false;
  return {
    ring: () => {
      isRung = waiters.size === 0;
      const woken = waiters;
      waiters = new Set();
      for (const wake of woken) wake();
    },
    wait: (timeoutMs) =>
      new Promise((resolve) => {
        if (isRung) {
          isRung = false;
          resolve(false);
          return;
        }
        const cancel = clock.after(timeoutMs, () => {
          waiters.delete(wake);
          resolve(true);
        });
        const wake = () => {
          cancel();
          resolve(false);
        };
        waiters.add(wake);
      }),
  };
}
