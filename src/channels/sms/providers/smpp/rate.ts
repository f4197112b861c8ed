import type { Clock } from '../../../../platform/clock.ts';
import { sleep } from '../../../../platform/clock.ts';

/**
 * Limits the parts of texts that leave a second, evenly spread, over all connections and tries together. Each part
 * takes a turn before it is submitted; turns lie at even distances.
 *
 * A text is confirmed before it is submitted, and texts are confirmed in groups: were they submitted as they come out
 * of it, they would leave in bursts. So a text takes its turn before it is confirmed, and one that comes too late for
 * its turn takes another.
 */
export type Rate = {
  /** How long no further text should begin, because the next turns are taken; zero if one may begin now. */
  beginLeftMs: () => number;
  /**
   * Takes the next turn. The returned function resolves when it has come, at once if it has only just passed, and at
   * another turn if it was missed.
   */
  takeTurn: () => () => Promise<void>;
};

/**
 * How late a turn may be used before it is missed, and how far unused turns are caught up on. Shorter: timers that are
 * a little late cost turns. Longer: the provider sees a burst. Turns lie further apart by as much as both can add up
 * to, so that no second has more than its number.
 */
const lateMsMax = 10;

/**
 * Shorter than a confirmation takes, and turns are missed while texts wait for them; longer, and more texts are
 * confirmed and not submitted yet when the process dies.
 */
const aheadMsMax = 250;

export function createRate(clock: Clock, perSecondMax: number): Rate {
  const distanceMs = (1_000 + 2 * lateMsMax) / perSecondMax;
  let nextAtMs = -Infinity;

  const take = (): number => {
    const nowMs = clock.monotonicMs();
    const atMs = Math.max(nextAtMs, nowMs);
    nextAtMs = Math.max(nextAtMs, nowMs - lateMsMax) + distanceMs;
    return atMs;
  };

  const waitFor = async (takenAtMs: number): Promise<void> => {
    let atMs = takenAtMs;
    // Ends when the process is on time, which it is but for a stall now and then.
    for (;;) {
      const nowMs = clock.monotonicMs();
      if (nowMs - atMs > lateMsMax) atMs = take();
      if (atMs <= nowMs) return;
      await sleep(clock, atMs - nowMs);
    }
  };

  return {
    beginLeftMs: () => Math.max(0, nextAtMs - clock.monotonicMs() - aheadMsMax),
    takeTurn: () => {
      const atMs = take();
      return () => waitFor(atMs);
    },
  };
}
