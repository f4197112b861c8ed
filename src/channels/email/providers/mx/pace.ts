import type { Clock } from '../../../../platform/clock.ts';

/**
 * How fast a destination takes messages, and when to come back to it.
 *
 * The time between two messages is measured while there is work; hand-offs that have to come back are booked, each one
 * such time after the one before, so that they return one by one as there is room for them and not all at once. A
 * booking reserves no place; a hand-off that comes back too early is booked again.
 */
export type Pace = {
  /** A hand-off begins while nothing else is under way. */
  noteBusy: () => void;
  /** A hand-off ended; `isBusy` says whether others are under way. */
  noteSettled: (isBusy: boolean) => void;
  /** How long to stay away, after this many that wait already, and after a pause of this many milliseconds. */
  book: (ahead: number, pauseMs: number) => number;
};

/** Before anything was measured. */
const firstServiceMs = 100;

/** How much one message counts against those before it. */
const weight = 0.1;

/** Sooner would cost more than waiting here; later would leave a destination idle that has become fast again. */
const retryAfterMinMs = 250;
const retryAfterMaxMs = 60_000;

/** What is booked beyond the end of the book comes back spread over its last part. */
const spread = 0.25;

export function createPace(clock: Clock, random: () => number): Pace {
  let serviceMs = firstServiceMs;
  let lastSettledAtMs: number | null = null;
  let bookedUntilMs = 0;

  return {
    noteBusy: () => {
      lastSettledAtMs = clock.monotonicMs();
    },
    noteSettled: (isBusy) => {
      const nowMs = clock.monotonicMs();
      if (lastSettledAtMs !== null) serviceMs += weight * (nowMs - lastSettledAtMs - serviceMs);
      lastSettledAtMs = isBusy ? nowMs : null;
    },
    book: (ahead, pauseMs) => {
      const nowMs = clock.monotonicMs();
      // A destination that has fallen silent is slower than it was.
      const silentMs = lastSettledAtMs === null ? 0 : nowMs - lastSettledAtMs;
      const paceMs = Math.max(serviceMs, silentMs, 1);
      const beginsAtMs = Math.max(bookedUntilMs, nowMs + pauseMs + ahead * paceMs);
      const endsAtMs = nowMs + pauseMs + retryAfterMaxMs;
      bookedUntilMs = Math.min(beginsAtMs + paceMs, endsAtMs);
      const retryAtMs =
        bookedUntilMs < endsAtMs ? bookedUntilMs : endsAtMs - spread * retryAfterMaxMs * random();
      return Math.max(Math.round(retryAtMs - nowMs), retryAfterMinMs);
    },
  };
}
