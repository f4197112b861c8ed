import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { dateOf, now, parseTimestamp, sleep, systemClock } from './clock.ts';

test.each([
  ['2026-11-21T10:00:00.000Z', Date.UTC(2026, 10, 21, 10)],
  ['2026-11-21T10:00Z', Date.UTC(2026, 10, 21, 10)],
  ['2026-11-21T10:00:00+05:30', Date.UTC(2026, 10, 21, 4, 30)],
  ['2026-11-21T10:00:00.123456789Z', Date.UTC(2026, 10, 21, 10, 0, 0, 123)],
  ['2024-02-29T00:00:00Z', Date.UTC(2024, 1, 29)],
])('%s is a time', (text, epochMs) => {
  expect(parseTimestamp(text)).toBe(epochMs);
});

test.each([
  '',
  '2026-11-21',
  '2026-11-21T10:00:00',
  '2026-11-21 10:00:00Z',
  '2026-02-29T10:00:00Z',
  '2026-02-31T10:00:00+01:00',
  '2026-13-01T00:00:00Z',
  '2026-11-21T25:00:00Z',
  '2026-11-21T10:60:00Z',
  '2026-11-21T10:00:00+25:00',
  '2026-11-21T10:00:00.Z',
  '2026-11-21T10:00:00Z\n',
  '1763719200000',
  'Sat, 21 Nov 2026 10:00:00 GMT',
  '2026-11-21T10:00:00.000000000000000000Z',
])('%j is no time', (text) => {
  expect(parseTimestamp(text)).toBeNull();
});

test('every instant that is written as UTC is read back as itself', () => {
  fc.assert(
    fc.property(fc.date({ min: new Date(0), max: new Date('9999-12-31'), noInvalidDate: true }), (date) => {
      expect(parseTimestamp(date.toISOString())).toBe(date.getTime());
    }),
  );
});

test('text of any kind is read as a time or refused, and never throws', () => {
  fc.assert(
    fc.property(fc.string({ unit: fc.constantFrom(...'0123456789-:TZ.+') }), (text) => {
      const epochMs = parseTimestamp(text);
      expect(epochMs === null || Number.isFinite(epochMs)).toBe(true);
    }),
  );
});

test('the system clock shows the present, goes up, and takes callbacks back', async () => {
  expect(Math.abs(now(systemClock).getTime() - Date.now())).toBeLessThan(60_000);
  expect(systemClock.monotonicMs()).toBeLessThanOrEqual(systemClock.monotonicMs());
  const called: string[] = [];
  const takeBack = systemClock.after(0, () => called.push('taken back'));
  takeBack();
  await new Promise<void>((resolve) => {
    systemClock.after(1, () => {
      called.push('kept');
      resolve();
    });
  });
  expect(called).toEqual(['kept']);
});

test('a sleep ends at its time, and with the reason of its signal before that', async () => {
  const clock = createManualClock();
  const order: string[] = [];
  const slept = sleep(clock, 100).then(() => order.push('slept'));
  clock.advance(99);
  await Promise.resolve();
  order.push('almost');
  clock.advance(1);
  await slept;
  expect(order).toEqual(['almost', 'slept']);

  const aborter = new AbortController();
  const interrupted = sleep(clock, 100, aborter.signal);
  aborter.abort(new Error('no longer wanted'));
  await expect(interrupted).rejects.toThrow('no longer wanted');
  await expect(sleep(clock, 100, aborter.signal)).rejects.toThrow('no longer wanted');
});

test('callbacks of the manual clock run in the order of their times, at their own instants', () => {
  const clock = createManualClock(Date.UTC(2026, 0, 1));
  const ran: [string, number][] = [];
  clock.after(30, () => ran.push(['third', clock.nowMs()]));
  clock.after(10, () => {
    ran.push(['first', clock.nowMs()]);
    clock.after(10, () => ran.push(['second', clock.nowMs()]));
  });
  clock.advance(30);
  const startMs = Date.UTC(2026, 0, 1);
  expect(ran).toEqual([
    ['first', startMs + 10],
    ['second', startMs + 20],
    ['third', startMs + 30],
  ]);
  expect(dateOf(clock.nowMs()).toISOString()).toBe('2026-01-01T00:00:00.030Z');
});
