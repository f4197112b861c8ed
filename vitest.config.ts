import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/**
 * Those that run for five seconds and more, the longest first: begun last, they would keep one core waiting for the other.
 * Where one is missing or too many, a run takes some seconds longer, and nothing else.
 */
const longFiles = [
  ...[
    'sandbox-page',
    'secret',
    'mail-servers',
    'chaos-short',
    'installed-package',
    'rolling-restart',
    'set-aside',
    'packaging',
    'embedded',
    'smtp-relay',
    'operator',
    'gallery-page',
    'delivery',
  ],
  ...[
    'unfinished-requests',
    'silent-database',
    'import',
    'contacts-import',
    'chaos-sms-short',
    'chaos-push-short',
    'chaos-chatapp-short',
    'wrong-database',
    'listener',
  ],
  ...[
    'operator-commands',
    'documentation',
    'web-push-firefox',
    'push-trial-firefox',
    'push-trial',
    'serve-start',
    'http-edge',
    'first-start',
    'sandbox/routes',
  ],
  ...[
    'email-send',
    'segments',
    'direct-delivery',
    'migrate',
    'restored-database',
    'sending-domains',
    'arrows',
  ],
  ...['generate', 'tracking', 'api-clients', 'compile', 'contacts', 'smtp-server', 'tenancy', 'serve-output'],
];

/** The long ones first, and then as ever, large files first. */
class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const placeOf = ({ moduleId }: TestSpecification) => {
      const place = longFiles.findIndex((name) => moduleId.endsWith(`/${name}.test.ts`));
      return place === -1 ? longFiles.length : place;
    };
    const sorted = await super.sort(files);
    return sorted.sort((first, second) => placeOf(first) - placeOf(second));
  }
}

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'clients/**/*.test.ts', 'test/**/*.test.ts', 'tools/**/*.test.ts'],
    globalSetup: ['test/support/postgres-for-tests.ts', 'test/support/dkim-key-pairs.ts'],
    sequence: { sequencer: LongestFirst },
    pool: 'forks',
    // A process and all modules anew for each file would take as much time as the tests of most files.
    isolate: false,
    // One more than there are cores: a third of the time tests wait for what they have started, or for a deadline. With two
    // more, some tests of programs and races fail.
    maxWorkers: availableParallelism() + 1,
    // They only end what hangs: a machine that has other things to do takes many times as long, and says nothing by it.
    testTimeout: 180_000,
    hookTimeout: 180_000,
    // Where something hangs in one file, each of its tests takes that long.
    bail: 3,
  },
});
