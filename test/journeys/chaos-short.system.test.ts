/** The short form of the fault injection: real processes, killed under load. `npm run chaos` is the long one. */
import { afterEach, expect, test } from 'vitest';
import { runChaos } from '../chaos/run.ts';

let abandon: () => Promise<void> = () => Promise.resolve();

afterEach(() => abandon());

test('whatever is killed, what was accepted arrives, and nothing arrives twice without an explanation', async () => {
  const plan = { seed: 20_261_121, sends: 150, kills: 7, faults: ['all', 'crash-points'] as const };
  const report = await runChaos(plan, {
    onStage: () => undefined,
    onStart: (remove) => {
      abandon = remove;
    },
  });
  expect(report.findings.violations).toEqual([]);
  expect(report.findings).toMatchObject({ lost: 0, unexplainedDuplicates: 0 });
  expect(report.findings.accepted).toBeGreaterThanOrEqual(150);
  // What it proves, it proves only if something was killed.
  expect(new Set(report.kills.map(({ victim }) => victim))).toEqual(new Set(['api', 'worker', 'postgres']));
});
