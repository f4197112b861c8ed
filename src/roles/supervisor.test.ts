import os from 'node:os';
import { expect, test } from 'vitest';
import { countProcesses } from './supervisor.ts';

test('a role alone runs in as many processes as there are cores and room for, both together in one', () => {
  const placesMax = Math.floor(os.totalmem() / (512 * 1_048_576));
  const processes = countProcesses({ processes: null }, 'worker');
  expect(processes).toBeGreaterThanOrEqual(1);
  expect(processes).toBeLessThanOrEqual(Math.max(1, Math.min(os.availableParallelism(), placesMax)));
  expect(countProcesses({ processes: null }, 'api')).toBe(processes);
  expect(countProcesses({ processes: null }, 'all')).toBe(1);
});

test('a number that is set is the number', () => {
  for (const role of ['all', 'api', 'worker'] as const)
    expect(countProcesses({ processes: 5 }, role)).toBe(5);
});
