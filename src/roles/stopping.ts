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
