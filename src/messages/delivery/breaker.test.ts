import { expect, test } from 'vitest';
import type { Clock } from '../../platform/clock.ts';
import type { Job } from '../channel.ts';
import { type Breaker, createBreaker, createBreakers, toldMs } from './breaker.ts';
import { nextPauseMs } from './retry.ts';

function createStill(): { clock: Clock; pass: (ms: number) => void } {
  let monotonicMs = 0;
  const clock: Clock = { nowMs: () => 0, monotonicMs: () => monotonicMs, after: () => () => undefined };
  return {
    clock,
    pass: (ms) => {
      monotonicMs += ms;
    },
  };
}

function createOpen(): { breaker: Breaker; pass: (ms: number) => void } {
  const { clock, pass } = createStill();
  const breaker = createBreaker(clock);
  for (let failure = 1; failure <= 5; failure += 1) breaker.note(true);
  return { breaker, pass };
}

test('four failures in a row leave it closed, and the fifth opens it for a second', () => {
  const { clock } = createStill();
  const breaker = createBreaker(clock);
  expect([1, 2, 3, 4].map(() => breaker.note(true))).toEqual([null, null, null, null]);
  expect([breaker.admits(64), breaker.enter(), breaker.pauseMs()]).toEqual([64, 'passes', null]);
  expect(breaker.note(true)).toBe('opened');
  expect([breaker.admits(64), breaker.enter(), breaker.pauseMs()]).toEqual([0, 'refused', 1_000]);
});

test('a success in between begins the count anew', () => {
  const { clock } = createStill();
  const breaker = createBreaker(clock);
  for (const isUnavailable of [true, true, true, true, false, true, true, true, true]) {
    expect(breaker.note(isUnavailable)).toBeNull();
  }
  expect(breaker.note(true)).toBe('opened');
});

test('after the pause one job probes, and no other passes until it has ended', () => {
  const { breaker, pass } = createOpen();
  pass(999);
  expect(breaker.enter()).toBe('refused');
  pass(1);
  expect(breaker.admits(64)).toBe(1);
  expect([breaker.enter(), breaker.enter()]).toEqual(['probes', 'refused']);
  expect(breaker.admits(64)).toBe(0);
});

test('a probe that succeeds closes it', () => {
  const { breaker, pass } = createOpen();
  pass(1_000);
  breaker.enter();
  expect(breaker.note(false)).toBe('closed');
  expect([breaker.admits(64), breaker.enter()]).toEqual([64, 'passes']);
});

test('each probe that fails doubles the pause, up to half a minute', () => {
  const { breaker, pass } = createOpen();
  const pauses: (number | null)[] = [];
  for (let probe = 1; probe <= 7; probe += 1) {
    pass(breaker.pauseMs() ?? 0);
    expect(breaker.enter()).toBe('probes');
    expect(breaker.note(true)).toBe('opened');
    pauses.push(breaker.pauseMs());
  }
  expect(pauses).toEqual([2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
});

test('failures of jobs that were under way when it opened do not lengthen the pause', () => {
  const { breaker } = createOpen();
  expect([breaker.note(true), breaker.note(true)]).toEqual([null, null]);
  expect(breaker.pauseMs()).toBe(1_000);
});

test('a probe that came to no outcome leaves room for the next', () => {
  const { breaker, pass } = createOpen();
  pass(1_000);
  breaker.enter();
  breaker.abandonProbe();
  expect([breaker.admits(64), breaker.enter()]).toEqual([1, 'probes']);
});

test('it is told until any message that waits for it was to be tried again, and once more after the next failure', () => {
  const { breaker, pass } = createOpen();
  expect(nextPauseMs(100, undefined, 1)).toBeLessThan(toldMs);
  pass(toldMs - 1);
  expect(breaker.isTold()).toBe(true);
  breaker.enter();
  breaker.note(true);
  pass(toldMs - 1);
  expect(breaker.isTold()).toBe(true);
  pass(1);
  expect(breaker.isTold()).toBe(false);
  // Tried no more than one that is told.
  expect([breaker.enter(), breaker.enter()]).toEqual(['probes', 'refused']);
  expect([breaker.note(true), breaker.isTold()]).toEqual(['opened', true]);
});

const jobOf = (organizationId: string) => ({ organizationId }) as Job;

test('one breaker for all: where it is open nothing is claimed, and nobody is put off for longer', () => {
  const breakers = createBreakers(createStill().clock, null);
  for (let failure = 1; failure <= 5; failure += 1) breakers.of(jobOf(`${failure}`)).note(true);
  expect([breakers.admits(64), breakers.pauseMs(), breakers.putOffMs(jobOf('6'), 0.5)]).toEqual([
    0, 1_000, 0,
  ]);
});

test('a breaker for each account: one that fails is put off, and the others pass', () => {
  const breakers = createBreakers(createStill().clock, ({ organizationId }) => organizationId);
  for (let failure = 1; failure <= 5; failure += 1) breakers.of(jobOf('fails')).note(true);
  expect([breakers.of(jobOf('fails')).enter(), breakers.of(jobOf('works')).enter()]).toEqual([
    'refused',
    'passes',
  ]);
  expect([breakers.admits(64), breakers.pauseMs()]).toEqual([64, null]);
  expect([0, 0.5].map((random) => breakers.putOffMs(jobOf('fails'), random))).toEqual([1_000, 31_000]);
});

test('as many are told of as have failed, of however many accounts', () => {
  const breakers = createBreakers(createStill().clock, ({ organizationId }) => organizationId);
  const jobs = ['a', 'b', 'c'].map((organizationId) => ({ organizationId }) as Job); // Nothing else is read.
  for (const [index, job] of jobs.entries())
    for (let failure = 1; failure <= 5; failure += 1) breakers.of(job).note(index > 0);
  expect(breakers.countTold()).toBe(2);
});
