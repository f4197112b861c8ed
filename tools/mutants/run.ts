import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { Command } from 'commander';
import { allMutants } from './list.ts';
import { chooseMutants, type Mutant, nameOf, problemsOf } from './mutant.ts';
import type { Session, Trial, Verdict } from './session.ts';
import { startSession } from './session-process.ts';

/**
 * `npm run mutants -- [--only WORD] [--changed [REVISION]] [--seconds N] [--trust-tests]`
 *
 * Tries the mutants of the list and exits with 1 unless each is noticed by its tests, or listed with a reason why it is
 * not.
 */
type Options = { only?: string; changed?: string | true; seconds?: string; trustTests?: boolean };

const root = path.resolve(import.meta.dirname, '../..');
const listDirectory = 'tools/mutants/list';
/** Of so many that a session is worth its start. */
const mutantsPerSession = 10;
/**
 * For each core: a third of the time is spent waiting, for tests that notice by waiting in vain. With more, tests would
 * be slow enough to fail over it.
 */
const sessionsPerCore = 2;
const sessionsMax = 4;
const startedAtMs = performance.now();

const options = new Command('npm run mutants --')
  .option(
    '--only <word>',
    'those with this in the name of their file or tests, or in what a user would suffer',
  )
  .option(
    '--changed [revision]',
    'those whose file or tests changed since the revision, or since the branch was begun, and a sample of others',
  )
  .option('--seconds <n>', 'begin no more after so many seconds')
  .option('--trust-tests', 'the tests have just passed: do not see first that they do')
  .parse()
  .opts<Options>();

process.exitCode = await run(options);

async function run({ only, changed, seconds, trustTests = false }: Options): Promise<number> {
  const problems = problemsOf(allMutants, readProjectFile);
  if (problems.length > 0) {
    console.error(problems.join('\n'));
    return 1;
  }
  const budgetMs = seconds === undefined ? null : Number(seconds) * 1_000;
  if (Number.isNaN(budgetMs)) {
    console.error('--seconds is a number');
    return 1;
  }
  const revision = changed === true ? revisionOfOthers() : changed;
  const { mutants, changedCount } = chooseMutants(allMutants, {
    only,
    changes: changed === undefined ? null : changesSince(revision ?? null),
    isTimed: budgetMs !== null,
    seed: git('rev-parse', 'HEAD') ?? '',
  });
  if (mutants.length === 0) {
    console.error(`No mutant is about ${only ?? 'anything'}.`);
    return 1;
  }

  const sessions: Session[] = [];
  const closeAll = () => Promise.all(sessions.map((session) => session.close()));
  const interrupt = () => {
    void closeAll().finally(() => process.exit(130));
  };
  process.once('SIGINT', interrupt).once('SIGTERM', interrupt);
  try {
    while (sessions.length < countSessions(mutants)) sessions.push(await startSession(root));
    if (!trustTests && !(await doTestsPass(sessions, mutants))) return 1;
    const trials = await tryAll(sessions, mutants, budgetMs);
    return conclude(mutants, trials, changedCount);
  } finally {
    await closeAll();
  }
}

/** Each with a PostgreSQL of its own: on one that is given they would take each other's databases. */
function countSessions({ length }: readonly Mutant[]): number {
  if (process.env.TEST_DATABASE_URL) return 1;
  const worthwhile = Math.ceil(length / mutantsPerSession);
  return Math.min(worthwhile, availableParallelism() * sessionsPerCore, sessionsMax);
}

/** A test that fails anyway notices everything. */
async function doTestsPass(sessions: readonly Session[], mutants: readonly Mutant[]): Promise<boolean> {
  const files = [...new Set(mutants.flatMap(({ tests }) => tests))];
  const runs = sessions.map((session, index) => {
    const own = new Set(files.filter((_file, at) => at % sessions.length === index));
    return session.runUnchanged(
      mutants.map(({ tests, ...mutant }) => ({ ...mutant, tests: tests.filter((file) => own.has(file)) })),
    );
  });
  const failures = (await Promise.all(runs)).flat();
  if (failures.length === 0) return true;
  console.error('These fail without any mutant:');
  for (const failure of failures) console.error(`  ${failure}`);
  return false;
}

async function tryAll(
  sessions: readonly Session[],
  mutants: readonly Mutant[],
  budgetMs: number | null,
): Promise<ReadonlyMap<Mutant, Trial>> {
  const trials = new Map<Mutant, Trial>();
  const waiting = [...mutants];
  const tryWaiting = async (session: Session) => {
    // Ends with those that wait.
    for (let mutant = waiting.shift(); mutant !== undefined; mutant = waiting.shift()) {
      if (budgetMs !== null && performance.now() - startedAtMs > budgetMs) return;
      const trial = await session.tryMutant(mutant);
      trials.set(mutant, trial);
      console.log(
        `${trial.verdict.padEnd(10)} ${(trial.ms / 1_000).toFixed(1).padStart(5)} s  ${nameOf(mutant)}`,
      );
    }
  };
  await Promise.all(sessions.map(tryWaiting));
  return trials;
}

function conclude(
  mutants: readonly Mutant[],
  trials: ReadonlyMap<Mutant, Trial>,
  changedCount: number,
): number {
  const counts = new Map<Verdict, number>();
  for (const { verdict } of trials.values()) counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
  const seconds = Math.round((performance.now() - startedAtMs) / 1_000);
  const verdicts = [...counts].map(([verdict, count]) => `${count} ${verdict}`).join(', ');
  console.log(`\n${trials.size} of ${allMutants.length} mutants in ${seconds} s: ${verdicts || 'none'}`);
  const changedTried = Math.min(trials.size, changedCount);
  if (changedTried < changedCount)
    console.log(`Of ${changedCount} that changed, time was left for ${changedTried}.`);

  for (const mutant of mutants) {
    if (mutant.survives !== undefined && trials.has(mutant))
      console.log(`Listed with a reason: ${nameOf(mutant)}. ${mutant.survives}`);
  }
  const faults = [...trials].flatMap(([mutant, trial]) => faultOf(mutant, trial) ?? []);
  for (const fault of faults) console.log(fault);
  return faults.length > 0 ? 1 : 0;
}

/** Null where it is as it should be. */
function faultOf(mutant: Mutant, { verdict, noticedBy }: Trial): string | null {
  const isListed = mutant.survives !== undefined;
  switch (verdict) {
    case 'killed':
      return isListed ? `Listed as unnoticed, but noticed: ${nameOf(mutant)} (${noticedBy})` : null;
    case 'survived':
      return isListed ? null : `No test notices: ${nameOf(mutant)}`;
    case 'not loaded':
      return `Its tests do not load the file: ${nameOf(mutant)}`;
    case 'not tested':
      return `None of its tests ran: ${nameOf(mutant)}`;
    case 'broken':
      return `The tests cannot be loaded with it: ${nameOf(mutant)} (${noticedBy})`;
    default:
      return verdict satisfies never;
  }
}

/** Files that changed since, committed or not, and mutants that were not in the list. Without a revision nothing has. */
function changesSince(revision: string | null): {
  files: ReadonlySet<string>;
  isNew: (mutant: Mutant) => boolean;
} {
  if (revision === null) return { files: new Set(), isNew: () => false };
  const changed = git('diff', '--name-only', revision);
  if (changed === null) throw new Error(`git knows no revision ${revision}`);
  const files = new Set([
    ...changed.split('\n'),
    ...(git('ls-files', '--others', '--exclude-standard') ?? '').split('\n'),
  ]);
  const listBefore = readdirSync(path.join(root, listDirectory))
    .map((name) => git('show', `${revision}:${listDirectory}/${name}`) ?? '')
    .join('\n');
  return { files, isNew: ({ harm }) => !listBefore.includes(harm) };
}

/**
 * Where the work at hand was begun: at what it shares with the main branch or, on the main branch itself, at the commit
 * before. A checkout of one commit has neither, and null.
 */
function revisionOfOthers(): string | null {
  const head = git('rev-parse', 'HEAD');
  const shared = git('merge-base', 'origin/main', 'HEAD');
  return shared !== null && shared !== head ? shared : git('rev-parse', '--verify', '--quiet', 'HEAD~1');
}

/** Null where it fails, for example outside of a repository. */
function git(...words: readonly string[]): string | null {
  try {
    return execFileSync('git', words, {
      cwd: root,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    }).trim();
  } catch {
    return null;
  }
}

function readProjectFile(file: string): string | null {
  try {
    return readFileSync(path.join(root, file), 'utf8');
  } catch {
    return null;
  }
}
