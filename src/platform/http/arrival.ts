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

/** What arrives. */
export type Arriving = { bytesRead: () => number; isComplete: () => boolean };

export function arrivingBody(request: IncomingMessage): Arriving {
  // Kept, since a request that is over has none.
  const { socket } = request;
  return { bytesRead: () => socket.bytesRead, isComplete: () => request.complete };
}

/** Calls `onLate` once if the body is late, from now on. The returned function ends the watch. */
export function watchArrival(
  arriving: Arriving,
  clock: Clock,
  limits: ArrivalLimits,
  onLate: () => void,
): () => void {
  const startedAtMs = clock.monotonicMs();
  const bytesBefore = arriving.bytesRead();
  let cancel: () => void = () => undefined;
  const look = () => {
    if (arriving.isComplete()) return;
    const receivedMs = ((arriving.bytesRead() - bytesBefore) / limits.bytesPerSecondMin) * 1_000;
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
