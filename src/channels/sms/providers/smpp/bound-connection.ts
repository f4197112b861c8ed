import type { Clock } from '../../../../platform/clock.ts';
import { createPace } from './pace.ts';
import type { Pace } from './pace.ts';
import type { SmppWire } from './wire.ts';

/** How long texts under way on a connection that is about to end may wait for their answers. */
export const drainTimeoutMs = 5_000;

/** A bound connection, and the places in its window. */
export type BoundConnection = {
  wire: SmppWire;
  pace: Pace;
  /** How many more texts may begin now. */
  room: () => number;
  /** Takes a place; the returned function gives it back. */
  takePlace: () => () => void;
  /** Nothing more begins from now on. Resolves when all places are free, or after `timeoutMs`. */
  drain: (timeoutMs: number) => Promise<void>;
};

export function createBoundConnection(clock: Clock, wire: SmppWire, window: number): BoundConnection {
  const pace = createPace(clock, window);
  let taken = 0;
  let isLeaving = false;
  let free: Promise<void> | null = null;
  let onFree: () => void = () => undefined;
  return {
    wire,
    pace,
    room: () => (isLeaving ? 0 : pace.allowed() - taken),
    takePlace: () => {
      taken += 1;
      return () => {
        taken -= 1;
        if (taken === 0) onFree();
      };
    },
    drain: async (timeoutMs) => {
      isLeaving = true;
      if (taken === 0) return;
      // Both sides may want it to end, each for a reason of its own.
      free ??= new Promise((resolve) => {
        onFree = resolve;
      });
      await within(clock, timeoutMs, free);
    },
  };
}

/** Resolves with the work, or without it when time is up. */
export async function within(clock: Clock, timeoutMs: number, work: Promise<unknown>): Promise<void> {
  let cancel: () => void = () => undefined;
  const timeUp = new Promise<void>((resolve) => {
    cancel = clock.after(timeoutMs, resolve);
  });
  await Promise.race([work, timeUp]);
  cancel();
}
