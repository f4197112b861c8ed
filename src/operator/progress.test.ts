import { expect, test } from 'vitest';
import { formatProgress } from './progress.ts';

test.each([
  [{ rows: 0, share: null }, 0, '0 rows, 0 a second'],
  [{ rows: 1_500, share: null }, 500, '1,500 rows, 3,000 a second'],
  [{ rows: 0, share: 0 }, 100, `[${'.'.repeat(30)}] 0 %  0 rows, 0 a second`],
  [
    { rows: 1_000, share: 0.1 },
    2_000,
    `[${'#'.repeat(3)}${'.'.repeat(27)}] 10 %  1,000 rows, 500 a second, 18 s left`,
  ],
  [{ rows: 12, share: 1.2 }, 1_000, `[${'#'.repeat(30)}] 100 %  12 rows, 12 a second, 0 s left`],
])('%j after %d ms is shown as %s', (progress, elapsedMs, text) => {
  expect(formatProgress(progress, elapsedMs)).toBe(text);
});
