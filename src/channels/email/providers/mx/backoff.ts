import type { Clock } from '../../../../platform/clock.ts';

/**
 * Pauses a destination that throttles us, or that cannot be reached.
 *
 * **Open**: all goes through. When the destination as a whole could not be reached (`unreachable`), or said that we
 * ask too much of it (`throttled`), it is **paused**: nothing goes through. After the pause one hand-off goes
 * through as a **probe**; if that fails in the same way the next pause is twice as long, else all is open again.
 *
 * Every pause begins a new era. What went through in an earlier one says nothing new, good or bad: of twenty
 * hand-offs under way when the first was throttled, the others neither lengthen the pause nor end it.
 */

export type BackoffCause = 'unreachable' | 'throttled';

/** Given to a hand-off that goes through; it ends with `note` or with `abandon`. */
export type BackoffTicket = { era: number; isProbe: boolean };

export type Backoff = {
  /** Null while paused, and while a probe is under way. */
  enter: () => BackoffTicket | null;
  /** The pause that holds, or null; `remainingMs` is zero while a probe is due or under way. */
  pause: () => { cause: BackoffCause; remainingMs: number } | null;
  /** What became of a hand-off. True if it began a pause. */
  note: (ticket: BackoffTicket, isThrottled: boolean) => boolean;
  /** No connection could be opened for the hand-offs that waited. True if that began a pause. */
  noteUnreachable: (cause: BackoffCause) => boolean;
  /** The hand-off came to nothing that says anything of the destination: the next one probes. */
  abandon: (ticket: BackoffTicket) => void;
};

/** Shorter asks a server that is away too often; longer holds mail back from one that was away for a moment. */
const pauseMinMs = 30_000;
const pauseMaxMs = 600_000;

/** Without it, all workers would ask again at the same moment. */
const jitter = 0.2;

/** `random` is from 0 to 1. */
export function createBackoff(clock: Clock, random: () => number): Backoff {
  let era = 0;
  let pauseMs = 0;
  let pausedUntilMs = 0;
  let cause: BackoffCause = 'unreachable';
  let isProbing = false;

  const isPaused = () => pauseMs > 0;
  const remainingMs = () => Math.max(0, pausedUntilMs - clock.monotonicMs());
  const beginPause = (why: BackoffCause) => {
    era += 1;
    cause = why;
    isProbing = false;
    pauseMs = Math.min(Math.max(pauseMs * 2, pauseMinMs), pauseMaxMs);
    pausedUntilMs = clock.monotonicMs() + pauseMs * (1 - jitter + 2 * jitter * random());
  };

  return {
    enter: () => {
      if (!isPaused()) return { era, isProbe: false };
      if (remainingMs() > 0 || isProbing) return null;
      isProbing = true;
      return { era, isProbe: true };
    },
    pause: () => (isPaused() ? { cause, remainingMs: remainingMs() } : null),
    note: (ticket, isThrottled) => {
      if (ticket.era !== era) return false;
      if (isThrottled) {
        beginPause('throttled');
        return true;
      }
      if (ticket.isProbe) {
        isProbing = false;
        pauseMs = 0;
      }
      return false;
    },
    noteUnreachable: (why) => {
      if (isPaused() && !isProbing) return false;
      beginPause(why);
      return true;
    },
    abandon: (ticket) => {
      if (ticket.isProbe && ticket.era === era) isProbing = false;
    },
  };
}
