import fc from 'fast-check';
import { expect, test } from 'vitest';
import { dateBounds, parseDateValue } from './date-value.ts';

test.each([
  ['2026-11-21', '2026-11-21'],
  ['0001-01-01', '0001-01-01'],
  ['9999-12-31', '9999-12-31'],
  ['2024-02-29', '2024-02-29'],
  ['2026-11-21T10:00:00Z', '2026-11-21T10:00:00.000Z'],
  ['2026-11-21T10:00:00.123456Z', '2026-11-21T10:00:00.123Z'],
  ['2026-11-21T00:30:00+01:00', '2026-11-20T23:30:00.000Z'],
  ['2026-11-21T00:00:00Z', '2026-11-21T00:00:00.000Z'],
  ['0001-01-01T00:00:00Z', '0001-01-01T00:00:00.000Z'],
  ['0000-12-31T23:00:00-01:00', '0001-01-01T00:00:00.000Z'],
])('%s is stored as %s', (text, stored) => {
  expect(parseDateValue(text)).toBe(stored);
});

test.each([
  ...[
    '',
    '2026',
    '2026-11',
    '2026-1-1',
    '20261121',
    '21.11.2026',
    ' 2026-11-21',
    '2026-11-21\n',
    '2026-11-21Z',
  ],
  ...[
    '2026-02-29',
    '2026-13-01',
    '2026-00-10',
    '2026-04-31',
    '0000-01-01',
    '10000-01-01',
    '+002026-11-21',
    '-001-01-01',
  ],
  ...['2026-11-21T10:00:00', '2026-02-30T10:00:00Z', '2026-11-21T25:00:00Z', '2026-11-21 10:00:00Z'],
  ...['0001-01-01T00:00:00+01:00', '9999-12-31T23:59:59-01:00', '٢٠٢٦-١١-٢١'],
])('%j is no date', (text) => {
  expect(parseDateValue(text)).toBeNull();
});

test('a text of any length is no date', () => {
  expect(parseDateValue('2'.repeat(1_000_000))).toBeNull();
});

const dayMs = 86_400_000;
const [firstMs, lastMs] = [Date.parse('0001-01-01T00:00:00.000Z'), Date.parse('9999-12-31T23:59:59.999Z')];
/** Around midnight most of the time, in both forms where there are two. */
const dateTexts = fc
  .record({
    epochMs: fc.oneof(
      fc.integer({ min: 20_000, max: 20_003 }).map((day) => day * dayMs),
      fc.integer({ min: firstMs / dayMs, max: (lastMs - dayMs + 1) / dayMs }).map((day) => day * dayMs),
      fc.integer({ min: firstMs, max: lastMs }),
    ),
    offsetMs: fc.constantFrom(0, 0, 0, 1, -1, 3_600_000),
    isShort: fc.boolean(),
  })
  .map(({ epochMs, offsetMs, isShort }) => {
    const ms = Math.min(Math.max(epochMs + offsetMs, firstMs), lastMs);
    const text = new Date(ms).toISOString();
    return { ms, stored: isShort && ms % dayMs === 0 ? text.slice(0, 10) : text };
  });

const compare = (first: string, second: string) => Buffer.compare(Buffer.from(first), Buffer.from(second));

test('texts compared octet by octet with the bounds give the answers of time', () => {
  fc.assert(
    fc.property(dateTexts, dateTexts, (value, operand) => {
      expect(parseDateValue(value.stored)).toBe(value.stored);
      const { lowest, highest } = dateBounds(operand.stored);
      expect(compare(value.stored, lowest) < 0).toBe(value.ms < operand.ms);
      expect(compare(value.stored, lowest) >= 0).toBe(value.ms >= operand.ms);
      expect(compare(value.stored, highest) > 0).toBe(value.ms > operand.ms);
      expect(compare(value.stored, highest) <= 0).toBe(value.ms <= operand.ms);
    }),
    { numRuns: 2_000 },
  );
});
