/** Where time comes from, so that tests can move it. */
export type Clock = {
  /** Wall-clock milliseconds since 1970: for what is stored or shown. */
  nowMs: () => number;
  /** Monotonic milliseconds: for time-outs and durations. */
  monotonicMs: () => number;
  /** Runs `callback` once after `delayMs`; the returned function takes it back. Never keeps the process alive. */
  after: (delayMs: number, callback: () => void) => () => void;
};

export const systemClock: Clock = {
  // eslint-disable-next-line no-restricted-globals -- the one place where wall-clock time enters
  nowMs: () => Date.now(),
  monotonicMs: () => performance.now(),
  after: (delayMs, callback) => {
    const timer = setTimeout(callback, delayMs);
    timer.unref();
    return () => {
      clearTimeout(timer);
    };
  },
};

/** The clock's wall time as a Date, for parameters of SQL statements. */
export function now(clock: Clock): Date {
  return dateOf(clock.nowMs());
}

export function dateOf(epochMs: number): Date {
  // eslint-disable-next-line no-restricted-globals -- a value, not the present time
  return new Date(epochMs);
}

/** Resolves after `delayMs`, or rejects with the signal's reason when it aborts first. */
export function sleep(clock: Clock, delayMs: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(abortReason(signal));
      return;
    }
    const cancel = clock.after(delayMs, () => {
      signal?.removeEventListener('abort', onAbort);
      resolve();
    });
    const onAbort = () => {
      cancel();
      reject(abortReason(signal));
    };
    signal?.addEventListener('abort', onAbort, { once: true });
  });
}

function abortReason(signal: AbortSignal | undefined): Error {
  return signal?.reason instanceof Error ? signal.reason : new Error('aborted');
}
