/** The short form of the fault injection for texts: `npm run chaos -- --sms 10000` is the long one. */
import { afterEach, expect, test } from 'vitest';
import { runSms } from '../chaos/sms.ts';

let abandon: () => Promise<void> = () => Promise.resolve();

afterEach(() => abandon());

test('whatever is killed or cut off, a text reaches the message centre once, and its receipts are applied', async () => {
  const report = await runSms({ seed: 5, texts: 200, kills: 4 }, (remove) => {
    abandon = remove;
  });
  expect(report.violations).toEqual([]);
  expect(report).toMatchObject({ lost: 0, repeats: 0 });
  expect(report.counts.accepted).toBeGreaterThanOrEqual(200);
  // What it proves, it proves only if something was killed and something was cut off.
  expect(Object.entries(report.kills).filter(([, kills]) => kills === 0)).toEqual([]);
  expect(report.counts['connections cut by the message centre']).toBeGreaterThan(0);
});
