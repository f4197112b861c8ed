/** The short form of the fault injection for pushes: `npm run chaos -- --push 10000` is the long one. */
import { afterEach, expect, test } from 'vitest';
import { runPush } from '../chaos/push.ts';

let abandon: () => Promise<void> = () => Promise.resolve();

afterEach(() => abandon());

test('whatever is killed or cut off, every browser is told once, or again for a recorded ambiguity', async () => {
  const report = await runPush({ seed: 5, notifications: 400, kills: 4 }, (remove) => {
    abandon = remove;
  });
  expect(report.violations).toEqual([]);
  expect(report).toMatchObject({ lost: 0 });
  expect(report.counts.accepted).toBeGreaterThanOrEqual(200);
  // What it proves, it proves only if something was killed and something was cut off.
  expect(Object.entries(report.kills).filter(([, kills]) => kills === 0)).toEqual([]);
  expect(report.counts['requests cut by the push service']).toBeGreaterThan(0);
});
