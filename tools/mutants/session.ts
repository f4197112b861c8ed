/**
 * One Vitest that tries mutants one after another. The file is never written: a plugin serves its changed text to the
 * tests' process, which is a new one for each mutant, while PostgreSQL and all other modules stay as they are. What
 * does not come through Vitest is not changed by that: programs and threads that tests start from `dist/`, and the
 * set-up of the run. A mutant there is reported as `not loaded`.
 */
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { createVitest, type TestModule, type TestProject, type Vitest } from 'vitest/node';
import { globalSetup, ofAll } from '../../vitest.config.ts';
import { type Mutant, mutate } from './mutant.ts';

/**
 * - `killed`: a test failed, or was not over at the deadline.
 * - `survived`: the tests ran with the mutant, and all passed.
 * - `not loaded`: the tests passed, but none of them loaded the file.
 * - `not tested`: no test ran, because none has such a name or all were skipped.
 * - `broken`: the tests' files could not even be loaded. That says nothing of the tests.
 */
export type Verdict = 'killed' | 'survived' | 'not loaded' | 'not tested' | 'broken';

export type Trial = {
  verdict: Verdict;
  ms: number;
  /** Of a mutant that was killed: which test failed, and how. */
  noticedBy: string | null;
};

export type TestsOf = Pick<Mutant, 'tests' | 'named'>;

export type Session = {
  /** Runs the tests as they are, all files together; what failed, a line each. */
  runUnchanged: (wanted: readonly TestsOf[]) => Promise<readonly string[]>;
  tryMutant: (mutant: Mutant) => Promise<Trial>;
  /** Stops what runs, and PostgreSQL. */
  close: () => Promise<void>;
};

/**
 * Longer than any test that is named in the list takes on a busy machine, its file's set-up included; Vitest's own
 * limit ends those that wait, this one also those that loop without waiting.
 */
export const deadlineMs = 60_000;

/**
 * Of tests that do not say so themselves, with a mutant. A test that notices by waiting in vain is to notice soon: the
 * suite's own limit allows for a machine that runs all of it at once, and holds where there is no mutant. Shorter than a
 * test takes that passes, and mutants are taken for noticed that are not; those of the list take two seconds at most.
 */
const testTimeoutMs = 5_000;
/** What a test that failed has left standing is not waited for. */
const hookTimeoutMs = 10_000;

/** `root` is the project's directory. Takes seconds: it starts PostgreSQL. */
export async function openSession(root: string): Promise<Session> {
  let served: { id: string; text: string; isLoaded: boolean } | null = null;
  const vitest = await createVitest(
    'test',
    {
      // One project for all tests, which is the one that the plug-in serves the mutant to.
      config: false,
      ...ofAll,
      globalSetup,
      include: ['**/*.test.ts'],
      root,
      watch: false,
      maxWorkers: 1,
      reporters: [{}],
      silent: true,
      // The order of the suite goes by what failed before; mutants are not to count.
      cache: false,
    },
    {
      plugins: [
        {
          name: 'mutant',
          enforce: 'pre',
          load: (id) => {
            if (served === null || id.split('?')[0] !== served.id) return null;
            served.isLoaded = true;
            return served.text;
          },
        },
      ],
    },
  );
  const [project] = vitest.projects;
  if (project === undefined) throw new Error('Vitest has no project');
  await prepare(vitest, project, root);

  return {
    runUnchanged: async (wanted) => {
      const { modules, errors } = await runTests(vitest, project, root, byFile(wanted));
      return [...modules.flatMap(failuresOf), ...errors.map(sentenceOf)];
    },
    tryMutant: async (mutant) => {
      const id = path.join(root, mutant.file);
      served = { id, text: mutate(mutant, await readFile(id, 'utf8')), isLoaded: false };
      vitest.invalidateFile(id);
      const startedAtMs = performance.now();
      try {
        const run = await runTests(vitest, project, root, byFile([mutant]), { hasMutant: true });
        return { ...judge(run, served.isLoaded), ms: performance.now() - startedAtMs };
      } finally {
        served = null;
        vitest.invalidateFile(id);
      }
    },
    close: () => vitest.close(),
  };
}

/** The set-up of the run, which loads much of the program, happens at the first test: before there is a mutant. */
async function prepare(vitest: Vitest, project: TestProject, root: string): Promise<void> {
  const test = { tests: ['tools/mutants/mutant.test.ts'], named: 'is put in at its place' };
  const { modules, errors } = await runTests(vitest, project, root, byFile([test]));
  const failures = [...modules.flatMap(failuresOf), ...errors.map(sentenceOf)];
  if (failures.length > 0) throw new Error(`Vitest does not start: ${failures.join('\n')}`);
}

type FileToRun = { file: string; pattern: RegExp | null };

/** Each file once, with the tests that anybody wants of it. */
function byFile(wanted: readonly TestsOf[]): readonly FileToRun[] {
  const namesOf = new Map<string, Set<string | null>>();
  for (const { tests, named = null } of wanted) {
    for (const file of tests) namesOf.set(file, (namesOf.get(file) ?? new Set()).add(named));
  }
  return [...namesOf].map(([file, names]) => {
    const texts = [...names].filter((name) => name !== null);
    return { file, pattern: names.has(null) ? null : new RegExp(texts.map(escape).join('|')) };
  });
}

function escape(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}

type Run = { modules: readonly TestModule[]; errors: readonly unknown[]; isOverdue: boolean };

async function runTests(
  vitest: Vitest,
  project: TestProject,
  root: string,
  files: readonly FileToRun[],
  { hasMutant = false } = {},
): Promise<Run> {
  const specifications = files.map(({ file, pattern }) =>
    project.createSpecification(
      path.join(root, file),
      pattern === null ? undefined : { testNamePattern: pattern },
    ),
  );
  vitest.config.bail = hasMutant ? 1 : 0;
  const { testTimeout, hookTimeout } = project.config;
  if (hasMutant) Object.assign(project.config, { testTimeout: testTimeoutMs, hookTimeout: hookTimeoutMs });
  // Of a file that this run could not load there would be the results of an earlier one.
  vitest.state.clearFiles(
    project,
    specifications.map(({ moduleId }) => moduleId),
  );
  let isOverdue = false;
  const deadline = setTimeout(() => {
    isOverdue = true;
    // The first asks, the second kills: a process that loops does not listen.
    void vitest.cancelCurrentRun('keyboard-input');
    void vitest.cancelCurrentRun('keyboard-input');
  }, deadlineMs);
  try {
    const { testModules, unhandledErrors } = await vitest.runTestSpecifications(specifications);
    // Those of other files are in there too.
    const ids = new Set(specifications.map(({ moduleId }) => moduleId));
    const modules = testModules.filter(({ moduleId }) => ids.has(moduleId));
    return { modules, errors: unhandledErrors, isOverdue };
  } finally {
    clearTimeout(deadline);
    Object.assign(project.config, { testTimeout, hookTimeout });
    // Vitest takes a failure for its own.
    process.exitCode = 0;
  }
}

function judge({ modules, errors, isOverdue }: Run, isLoaded: boolean): Omit<Trial, 'ms'> {
  if (isOverdue) return { verdict: 'killed', noticedBy: 'the deadline' };
  const tests = modules.flatMap((module) => [...module.children.allTests()]);
  const failure = [...modules.flatMap(failuresOf), ...errors.map(sentenceOf)][0];
  if (failure !== undefined) {
    return { verdict: tests.length === 0 ? 'broken' : 'killed', noticedBy: failure };
  }
  if (!tests.some((test) => test.result().state === 'passed'))
    return { verdict: 'not tested', noticedBy: null };
  return { verdict: isLoaded ? 'survived' : 'not loaded', noticedBy: null };
}

function failuresOf(module: TestModule): string[] {
  const tests = [...module.children.allTests('failed')].map(
    (test) => `${module.relativeModuleId} > ${test.fullName}: ${sentenceOf(test.result().errors?.[0])}`,
  );
  const suites = [module, ...module.children.allSuites()].flatMap((suite) =>
    suite.errors().map((error) => `${module.relativeModuleId}: ${sentenceOf(error)}`),
  );
  return [...tests, ...suites];
}

function sentenceOf(error: unknown): string {
  const message = error instanceof Object && 'message' in error ? error.message : error;
  return String(message).split('\n')[0] ?? '';
}
