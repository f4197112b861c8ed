import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/**
 * Large files first, as ever, but before them those that are short and run long: begun last, they would keep one core
 * waiting for the other.
 */
class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const isLong = ({ moduleId }: TestSpecification) =>
      /chaos|(operator|embedded|smtp-relay|import|-page)\.test\.ts$/.test(moduleId);
    const sorted = await super.sort(files);
    return [...sorted.filter(isLong), ...sorted.filter((file) => !isLong(file))];
  }
}

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts', 'tools/**/*.test.ts'],
    globalSetup: ['test/support/postgres-for-tests.ts', 'test/support/dkim-key-pairs.ts'],
    sequence: { sequencer: LongestFirst },
    pool: 'forks',
    // A process and all modules anew for each file would take as much time as the tests of most files.
    isolate: false,
    // Vitest keeps one core for itself; on two that would run one file after another.
    maxWorkers: '100%',
    testTimeout: 30_000,
    hookTimeout: 60_000,
  },
});
