import { systemClock } from '../platform/clock.ts';

/** npm and the terminal both pass Ctrl-C on: what comes this soon is the same request once more. */
const repeatedSignalMs = 2_000;

/** Resolves at the first signal. A second signal ends the process at once, after `onInsisting`. */
export function whenAskedToStop(onInsisting: () => void = () => undefined): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    let firstAtMs: number | null = null;
    const onSignal = (signal: NodeJS.Signals) => {
      const nowMs = systemClock.monotonicMs();
      firstAtMs ??= nowMs;
      resolve(signal);
      if (nowMs - firstAtMs <= repeatedSignalMs) return;
      onInsisting();
      process.exit(1);
    };
    process.on('SIGTERM', onSignal);
    process.on('SIGINT', onSignal);
  });
}

/** The longest that a timer can wait. */
const timerMsMax = 2_147_483_647;

/**
 * Keeps the process alive until it is asked to stop. The clock's timers do not, and a worker whose PostgreSQL is gone
 * and cannot be started yet, for want of disk space for instance, has nothing else.
 */
export async function stayUntil<Result>(asked: Promise<Result>): Promise<Result> {
  const staying = setInterval(() => undefined, timerMsMax);
  try {
    return await asked;
  } finally {
    clearInterval(staying);
  }
}
