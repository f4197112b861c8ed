import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts', 'tools/**/*.test.ts'],
    globalSetup: ['test/support/postgres-for-tests.ts'],
    pool: 'forks',
    // A process and all modules anew for each file would take as much time as the tests of most files.
    isolate: false,
    // Vitest keeps one core for itself; on two that would run one file after another.
    maxWorkers: '100%',
    testTimeout: 30_000,
    hookTimeout: 60_000,
  },
});
