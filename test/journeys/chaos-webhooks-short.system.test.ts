/** The short form of the fault injection for webhooks: `npm run chaos -- --webhooks` is the long one. */
import { afterEach, expect, test } from 'vitest';
import { runWebhooks } from '../chaos/webhooks.ts';

let abandon: () => Promise<void> = () => Promise.resolve();

afterEach(() => abandon());

test('whatever is killed, programs are told of every event, and twice only of what was under way', async () => {
  const report = await runWebhooks({ seed: 5, emails: 200, kills: 4 }, (remove) => {
    abandon = remove;
  });
  expect(report.violations).toEqual([]);
  expect(report).toMatchObject({ lost: 0 });
  expect(report.counts.accepted).toBeGreaterThanOrEqual(200);
  // What it proves, it proves only if something was killed, and receivers misbehaved.
  expect(Object.entries(report.kills).filter(([, kills]) => kills === 0)).toEqual([]);
  expect(report.counts['refused by receivers']).toBeGreaterThan(0);
  expect(report.counts['cut by receivers']).toBeGreaterThan(0);
});
