/** The short form of the fault injection for chat-app messages: `npm run chaos -- --chatapp 4000` is the long one. */
import { afterEach, expect, test } from 'vitest';
import { runChatApp } from '../chaos/chatapp.ts';

let abandon: () => Promise<void> = () => Promise.resolve();

afterEach(() => abandon());

test('whatever is killed or cut off, a notice reaches WhatsApp once, a code is repeated only for an ambiguity, and statuses are applied', async () => {
  const report = await runChatApp({ seed: 5, messages: 200, kills: 4 }, (remove) => {
    abandon = remove;
  });
  expect(report.violations).toEqual([]);
  expect(report).toMatchObject({ lost: 0 });
  expect(report.counts.accepted).toBeGreaterThanOrEqual(200);
  // What it proves, it proves only if something was killed and something was cut off.
  expect(Object.entries(report.kills).filter(([, kills]) => kills === 0)).toEqual([]);
  expect(report.counts['requests without an answer']).toBeGreaterThan(0);
});
