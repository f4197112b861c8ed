import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import { createRate } from './rate.ts';

/** Lets everything that was resolved go on. */
async function settle(): Promise<void> {
  for (let turn = 0; turn < 10; turn += 1) await Promise.resolve();
}

describe('createRate', () => {
  it('spreads turns evenly, from the first on', async () => {
    const clock = createManualClock();
    const { takeTurn } = createRate(clock, 10);
    const beganAtMs = clock.monotonicMs();
    const atMs: number[] = [];
    for (let turn = 0; turn < 5; turn += 1) {
      void takeTurn()().then(() => atMs.push(clock.monotonicMs() - beganAtMs));
    }
    for (let step = 0; step < 500; step += 1) {
      await settle();
      clock.advance(1);
    }
    expect(atMs).toEqual([0, 92, 194, 296, 398]);
  });

  it('lets a text begin only a moment before its turn', () => {
    const clock = createManualClock();
    const { beginLeftMs, takeTurn } = createRate(clock, 10);
    const begun = () => {
      let count = 0;
      for (; beginLeftMs() === 0; count += 1) takeTurn();
      return count;
    };
    expect(begun()).toBe(3);
    expect(beginLeftMs()).toBe(46);
    clock.advance(46);
    expect(begun()).toBe(1);
  });

  it('gives another turn to texts that missed theirs, so that texts that were held up do not leave at once', async () => {
    const clock = createManualClock();
    const { takeTurn } = createRate(clock, 100);
    const turns = Array.from({ length: 20 }, () => takeTurn());
    clock.advance(5_000);
    let come = 0;
    for (const turn of turns) void turn().then(() => (come += 1));
    await settle();
    expect(come).toBeLessThanOrEqual(2);
    for (let step = 0; step < 250; step += 1) {
      clock.advance(1);
      await settle();
    }
    expect(come).toBe(20);
  });

  it('never has more turns in a second than it may, and no fewer than nearly as many while they are wanted', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 1, max: 150 }),
        fc.array(fc.record({ count: fc.nat({ max: 120 }), afterMs: fc.nat({ max: 900 }) }), { maxLength: 4 }),
        fc.array(fc.constantFrom(1, 1, 1, 1, 2, 3, 5, 8, 13, 40), { minLength: 1, maxLength: 20 }),
        async (perSecondMax, arrivals, stepsMs) => {
          const clock = createManualClock();
          const { takeTurn } = createRate(clock, perSecondMax);
          const atMs: number[] = [];
          let [wanted, steps] = [0, 0];
          for (const { count, afterMs } of arrivals) {
            for (let turn = 0; turn < count; turn += 1) {
              wanted += 1;
              void takeTurn()().then(() => atMs.push(clock.monotonicMs()));
            }
            const untilMs = clock.monotonicMs() + afterMs;
            while (clock.monotonicMs() < untilMs) {
              await settle();
              clock.advance(stepsMs[steps++ % stepsMs.length] ?? 1);
            }
          }
          const stepsMax = Math.ceil((wanted / perSecondMax) * 600) + 1_000;
          for (let step = 0; step < stepsMax && atMs.length < wanted; step += 1) {
            await settle();
            clock.advance(2);
          }
          expect(atMs).toHaveLength(wanted);
          for (const [at, firstMs] of atMs.entries()) {
            const beyondMs = atMs[at + perSecondMax];
            if (beyondMs !== undefined) expect(beyondMs - firstMs).toBeGreaterThanOrEqual(1_000);
          }
        },
      ),
      { numRuns: 30 },
    );
  });
});
