import { expect, test } from 'vitest';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import { createBackoff } from './backoff.ts';

function arrange(random = 0.5) {
  const clock = createManualClock();
  return { clock, backoff: createBackoff(clock, () => random) };
}

test('all goes through while nothing is wrong', () => {
  const { backoff } = arrange();
  for (let at = 0; at < 3; at += 1) {
    const ticket = backoff.enter()!;
    expect(ticket.isProbe).toBe(false);
    expect(backoff.note(ticket, false)).toBe(false);
  }
  expect(backoff.pause()).toBeNull();
});

test('one goes through after a pause, which doubles up to ten minutes while that one fails', () => {
  const { backoff, clock } = arrange();
  expect(backoff.noteUnreachable('unreachable')).toBe(true);
  const pauses: number[] = [];
  for (let round = 0; round < 7; round += 1) {
    const { remainingMs } = backoff.pause()!;
    pauses.push(remainingMs);
    clock.advance(remainingMs - 1);
    expect(backoff.enter()).toBeNull();
    clock.advance(1);
    expect(backoff.enter()).toMatchObject({ isProbe: true });
    expect(backoff.enter()).toBeNull();
    expect(backoff.noteUnreachable('unreachable')).toBe(true);
  }
  expect(pauses).toEqual([30_000, 60_000, 120_000, 240_000, 480_000, 600_000, 600_000]);
});

test('a probe that succeeds opens all again, and the next pause is short', () => {
  const { backoff, clock } = arrange();
  backoff.noteUnreachable('unreachable');
  clock.advance(30_000);
  backoff.enter();
  backoff.noteUnreachable('unreachable');
  clock.advance(60_000);
  backoff.note(backoff.enter()!, false);
  expect(backoff.enter()).toMatchObject({ isProbe: false });
  backoff.noteUnreachable('unreachable');
  expect(backoff.pause()).toEqual({ cause: 'unreachable', remainingMs: 30_000 });
});

test('what was under way when the pause began neither lengthens nor ends it', () => {
  const { backoff, clock } = arrange();
  const tickets = [1, 2, 3].map(() => backoff.enter()!);
  expect(backoff.note(tickets[0]!, true)).toBe(true);
  expect(backoff.note(tickets[1]!, true)).toBe(false);
  expect(backoff.note(tickets[2]!, false)).toBe(false);
  expect(backoff.noteUnreachable('unreachable')).toBe(false);
  expect(backoff.pause()).toEqual({ cause: 'throttled', remainingMs: 30_000 });
  clock.advance(30_000);
  const probe = backoff.enter()!;
  backoff.note(tickets[2]!, false);
  expect(backoff.enter()).toBeNull();
  expect(backoff.note(probe, true)).toBe(true);
  expect(backoff.pause()).toEqual({ cause: 'throttled', remainingMs: 60_000 });
});

test('a probe that came to nothing makes way for the next', () => {
  const { backoff, clock } = arrange();
  backoff.noteUnreachable('unreachable');
  clock.advance(30_000);
  backoff.abandon(backoff.enter()!);
  expect(backoff.enter()).toMatchObject({ isProbe: true });
});

test.each([
  [0, 24_000],
  [1, 36_000],
])('pauses are spread (random %s: %s ms)', (random, expected) => {
  const { backoff } = arrange(random);
  backoff.noteUnreachable('unreachable');
  expect(backoff.pause()?.remainingMs).toBeCloseTo(expected);
});

test('a probe of an earlier pause that comes to nothing makes no way beside the one under way', () => {
  const { backoff, clock } = arrange();
  backoff.noteUnreachable('unreachable');
  clock.advance(30_000);
  const early = backoff.enter()!;
  backoff.noteUnreachable('unreachable');
  clock.advance(60_000);
  expect(backoff.enter()).toMatchObject({ isProbe: true });
  backoff.abandon(early);
  expect(backoff.enter()).toBeNull();
});
