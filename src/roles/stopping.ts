import { systemClock } from '../platform/clock.ts';

/**
 * Why a process stops. `orphaned`: its supervisor has died, and another may be started at any moment, which needs the port.
 * `failed_start`: another process of its supervisor cannot start.
 */
export type StopReason = NodeJS.Signals | 'orphaned' | 'failed_start';

/** What the log says of it: a signal only where somebody sent one. */
export function describeStop(reason: StopReason): { signal: string } | { reason: string } {
  return reason === 'orphaned' || reason === 'failed_start' ? { reason } : { signal: reason };
}

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
