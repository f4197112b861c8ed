import { expect, test } from 'vitest';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import { createPace, type PaceLimits } from './pace.ts';

const number = '106540352242922';

function arrange(limits: Partial<PaceLimits> = {}) {
  const clock = createManualClock();
  const pace = createPace(clock, () => 0.5, { perSecondUntilKnown: 80, pairBurst: 45, ...limits });
  let people = 0;
  /** The turns that different people's messages get within this time, asked for every millisecond. */
  const turnsWithin = (ms: number, isCampaign: boolean, atOnce = 3): number => {
    let turns = 0;
    for (let passed = 0; passed < ms; passed += 1) {
      for (let ask = 0; ask < atOnce; ask += 1) {
        people += 1;
        if (pace.take(number, `+49${people}`, isCampaign).hasTurn) turns += 1;
      }
      clock.advance(1);
    }
    return turns;
  };
  return { clock, pace, turnsWithin };
}

test('over ten seconds a number sends as many as it may, and a quarter of a second more', () => {
  const { turnsWithin } = arrange();
  const turns = turnsWithin(10_000, false);
  expect(turns).toBeGreaterThanOrEqual(800);
  expect(turns).toBeLessThanOrEqual(800 + 2 * 20 + 1);
});

test('campaigns get four fifths, and a transactional message beside them never waits', () => {
  const { pace, clock } = arrange();
  let [campaign, refused] = [0, 0];
  for (let ms = 0; ms < 10_000; ms += 1) {
    for (let ask = 0; ask < 3; ask += 1)
      if (pace.take(number, `+49${ms} ${ask}`, true).hasTurn) campaign += 1;
    // 15 a second: less than the fifth.
    if (ms % 66 === 0) {
      const { hasTurn, waitMs } = pace.take(number, `+1${ms}`, false);
      if (!hasTurn || waitMs > 0) refused += 1;
    }
    clock.advance(1);
  }
  expect(campaign).toBeGreaterThanOrEqual(640);
  expect(campaign).toBeLessThanOrEqual(640 + 2 * 20 + 1);
  expect(refused).toBe(0);
});

test('messages without a turn come back one after the other', () => {
  const { pace } = arrange();
  const waits: number[] = [];
  for (let ask = 0; ask < 200; ask += 1) {
    const { hasTurn, waitMs } = pace.take(number, `+49${ask}`, false);
    if (!hasTurn) waits.push(waitMs);
  }
  expect(waits.length).toBeGreaterThan(100);
  const distances = waits.slice(1).map((wait, at) => wait - waits[at]!);
  for (const distance of distances) expect(distance).toBeGreaterThanOrEqual(12);
});

test('nobody is sent away for more than a minute, however many wait', () => {
  const { pace } = arrange();
  let longest = 0;
  for (let ask = 0; ask < 20_000; ask += 1)
    longest = Math.max(longest, pace.take(number, `+49${ask}`, false).waitMs);
  expect(longest).toBeLessThanOrEqual(60_000);
  expect(longest).toBeGreaterThan(40_000);
});

test('a number that was too fast is halved, and comes back with what is accepted', () => {
  const { pace, clock, turnsWithin } = arrange();
  expect(pace.noteTooFast(number, '+491', 'number')).toBe(1_000);
  // Those that were under way say nothing new.
  expect(pace.noteTooFast(number, '+492', 'number')).toBe(1_000);
  clock.advance(1_000);
  expect(turnsWithin(10_000, false)).toBeLessThanOrEqual(400 + 2 * 20);
  for (let accepted = 0; accepted < 2_000; accepted += 1) pace.noteAccepted(number, '+493');
  expect(turnsWithin(10_000, false)).toBeGreaterThanOrEqual(780);
});

test('each time that a number is too fast again, it stops for twice as long', () => {
  const { pace, clock } = arrange();
  const pauses = Array.from({ length: 8 }, () => {
    const pauseMs = pace.noteTooFast(number, '+491', 'number');
    clock.advance(pauseMs);
    return pauseMs;
  });
  expect(pauses).toEqual([1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000]);
});

test('numbers do not slow each other down', () => {
  const { pace } = arrange();
  pace.noteTooFast(number, '+491', 'number');
  expect(pace.take(number, '+491', false).hasTurn).toBe(false);
  expect(pace.take('2', '+491', false)).toEqual({ hasTurn: true, waitMs: 0 });
});

test('a message that the number has no turn for uses up nothing of its person', () => {
  const { pace, clock } = arrange({ pairBurst: 1 });
  pace.noteTooFast(number, '+491', 'number');
  expect(pace.take(number, '+492', false).hasTurn).toBe(false);
  clock.advance(1_000);
  expect(pace.take(number, '+492', false).hasTurn).toBe(true);
  expect(pace.take(number, '+492', false)).toEqual({ hasTurn: false, waitMs: 6_000 });
});
