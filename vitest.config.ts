import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/**
 * Of this process, and of all that it starts. Half an hour beside the full ones, and on another day than the zone of the
 * sessions of PostgreSQL (`postgres-for-tests.ts`) for most of the time: whoever reads a clock by its zone is noticed.
 */
process.env.TZ = 'America/St_Johns';

/**
 * Those that run for five seconds and more, the longest first: begun last, they would keep one core waiting for the other.
 * Where one is missing or too many, a run takes some seconds longer, and nothing else.
 */
const longFiles = [
  ...[
    'backup',
    'monitoring',
    'web-pages',
    'sandbox-page',
    'failover',
    'secret',
    'rolling-restart',
    'mail-servers',
    'silent-database',
    'chaos-short',
    'operator-commands',
    'base-backup',
    'delivery',
    'processes',
    'operator',
    'contacts-import',
  ],
  ...[
    'pgbouncer',
    'chaos-push-short',
    'chaos-neighbour-short',
    'answer-watch',
    'chat-app-refusals',
    'gallery-page',
    'chaos-sms-short',
    'listener',
    'serve-start',
    'races',
    'chat-app-budget',
    'chaos-chatapp-short',
    'wrong-database',
    'smtp-relay',
    'embedded',
    'set-aside',
    'first-start',
    'installed-package',
  ],
  ...[
    'event-segments',
    'push-credentials',
    'chat-app-credentials',
    'chat-templates/jobs',
    'http-edge',
    'api-clients',
    'sandbox/routes',
    'postgres/database',
    'channels',
    'objections',
    'idle-worker',
    'complaints',
    'unfinished-requests',
    'direct-delivery',
    'email-send',
    'push-campaigns',
    'push',
    'import',
    'migrate',
    'segments',
  ],
  ...[
    'events-import',
    'packaging',
    'tenancy',
    'contacts',
    'chat-app-webhooks',
    'arrows',
    'compile',
    'domains',
    'placeholders',
    'tracking',
    'serve-output',
    'restored-database',
    'sending-domains',
    'web-push-firefox',
    'push-trial-firefox',
    'push-trial',
    'generate',
    'smtp-server',
  ],
];

/** The long ones first, and then as ever, large files first. */
class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const placeOf = ({ moduleId }: TestSpecification) => {
      const place = longFiles.findIndex((name) =>
        new RegExp(`/${name}(\\.system)?\\.test\\.ts$`).test(moduleId),
      );
      return place === -1 ? longFiles.length : place;
    };
    const sorted = await super.sort(files);
    return sorted.sort((first, second) => placeOf(first) - placeOf(second));
  }
}

const folders = ['src', 'clients', 'test', 'tools'];
/** They start the program, browsers, clusters or generators, each of which takes seconds. */
const systemTests = folders.map((folder) => `${folder}/**/*.system.test.ts`);
/** `npm run mutants` begins with them. */
const mutantTests = 'tools/mutants/**/*.test.ts';

export const ofAll = {
  pool: 'forks',
  // A process and all modules anew for each file would take as much time as the tests of most files.
  isolate: false,
  // Two more than there are cores: a third of the time tests wait for what they have started, or for a deadline.
  maxWorkers: availableParallelism() + 2,
  // They only end what hangs: a machine that has other things to do takes many times as long, and says nothing by it.
  // The longest test takes 40 s on two idle cores, and this is enough at twenty times the load. Where something hangs,
  // each test of its file takes that long: a run is not ended for it, since who tries this anew wants to know all that
  // fails on their machine, and not the first three.
  testTimeout: 900_000,
  hookTimeout: 900_000,
} as const;

export const globalSetup = ['test/support/postgres-for-tests.ts', 'test/support/dkim-key-pairs.ts'];

export default defineConfig({
  test: {
    ...ofAll,
    projects: [
      {
        test: {
          ...ofAll,
          name: 'parts',
          include: folders.map((folder) => `${folder}/**/*.test.ts`),
          exclude: [...systemTests, mutantTests],
        },
      },
      { test: { ...ofAll, name: 'mutants', include: [mutantTests] } },
      { test: { ...ofAll, name: 'system', include: systemTests } },
    ],
    globalSetup,
    sequence: { sequencer: LongestFirst },
  },
});
