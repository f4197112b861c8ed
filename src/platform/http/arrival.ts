import type { IncomingMessage } from 'node:http';
import type { Clock } from '../clock.ts';

/**
 * How long a body may take to arrive: a while for its beginning, and then as long as it keeps coming. A client that
 * sends one octet a second, or none, is late after the first of these; one with a slow line is not.
 */
export type ArrivalLimits = {
  firstMs: number;
  /** A slower client is late. Lower lets few clients hold many places; higher shuts out slow lines. */
  bytesPerSecondMin: number;
  wholeMaxMs: number;
};

/** A body of 30 MB has five minutes, and needs 100 kB a second to arrive in them; one of 1 MB has 42 seconds. */
export const defaultArrivalLimits: ArrivalLimits = {
  firstMs: 10_000,
  bytesPerSecondMin: 32_768,
  wholeMaxMs: 300_000,
};

/** Calls `onLate` once if the body is late, from now on. The returned function ends the watch. */
export function watchArrival(
  request: IncomingMessage,
  clock: Clock,
  limits: ArrivalLimits,
  onLate: () => void,
): () => void {
  const { socket } = request;
  const startedAtMs = clock.monotonicMs();
  const bytesBefore = socket.bytesRead;
  let cancel: () => void = () => undefined;
  const look = () => {
    if (request.complete) return;
    const receivedMs = ((socket.bytesRead - bytesBefore) / limits.bytesPerSecondMin) * 1_000;
    const allowedMs = Math.min(limits.firstMs + receivedMs, limits.wholeMaxMs);
    const leftMs = startedAtMs + allowedMs - clock.monotonicMs();
    if (leftMs <= 0) onLate();
    else cancel = clock.after(Math.ceil(leftMs), look);
  };
  look();
  return () => {
    cancel();
  };
}
