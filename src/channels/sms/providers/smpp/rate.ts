import type { Clock } from '../../../../platform/clock.ts';
import { sleep } from '../../../../platform/clock.ts';

/**
 * So many parts of texts a second and no more, evenly spread, whatever connections they take and however often they
 * are tried. Whatever is submitted takes a turn first; turns lie at even distances.
 *
 * A text is confirmed before it is submitted, and texts are confirmed in groups: were they submitted as they come out
 * of it, they would leave in bursts. So a text takes its turn before it is confirmed, and one that comes too late for
 * its turn takes another.
 */
export type Rate = {
  /** How long no further text should begin, because the turns of the next moment are taken; zero if one may. */
  beginLeftMs: () => number;
  /**
   * Takes the next turn. The returned function resolves when it has come, at once if it has only just passed, and at
   * another turn if it was missed.
   */
  takeTurn: () => () => Promise<void>;
};

/**
 * A turn is missed so long after it, and turns that nobody took are caught up on so far. Shorter, and timers that are
 * a little late cost turns; longer, and it is felt as a burst. Turns lie further apart by as much as both can add up
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
