/**
 * Faults put in on purpose, one at a time, to see whether the tests notice. A mutant is a change of one place in one
 * file from which a user would suffer, with the tests that fail over it. Here is what can be said of mutants without
 * running them: whether their places are still there, and which of them are tried.
 */
import { createHash } from 'node:crypto';

export type Mutant = {
  /** What is changed, from the project's directory: `src/…`. */
  file: string;
  /** Stands exactly once in the file. */
  from: string;
  to: string;
  /** The test files that notice. They must load `file` themselves: a program that they start is built without it. */
  tests: readonly string[];
  /** Part of the names of the tests that notice, as it stands in the test file. Without it all of the files' tests run. */
  named?: string;
  /** What a user would suffer. No two mutants say the same. */
  harm: string;
  /** Why no test notices, nor should one. A mutant with such a reason that is noticed all the same is a fault of the list. */
  survives?: string;
};

/**
 * What is wrong with the list before anything runs, a sentence each. `readText` gives a file's text by its path from
 * the project's directory, null where there is none.
 */
export function problemsOf(
  mutants: readonly Mutant[],
  readText: (file: string) => string | null,
): readonly string[] {
  const harms = new Set<string>();
  return mutants.flatMap((mutant) => {
    const isRepeated = harms.has(mutant.harm);
    harms.add(mutant.harm);
    return [
      ...placeProblems(mutant, readText(mutant.file)),
      ...testProblems(mutant, mutant.tests.map(readText)),
      ...(isRepeated ? ['another mutant says the same'] : []),
    ].map((problem) => `${nameOf(mutant)}: ${problem}`);
  });
}

function placeProblems({ from, to }: Mutant, text: string | null): string[] {
  if (text === null) return ['there is no such file'];
  if (from === to) return ['`to` is `from`'];
  const places = from === '' ? 0 : text.split(from).length - 1;
  if (places === 1) return [];
  return [
    places === 0 ? '`from` is not in the file (any more)' : `\`from\` stands in the file ${places} times`,
  ];
}

function testProblems({ tests, named }: Mutant, texts: readonly (string | null)[]): string[] {
  if (tests.length === 0) return ['no test file is named'];
  const missing = tests.filter((_, index) => texts[index] === null);
  if (missing.length > 0) return missing.map((test) => `there is no ${test}`);
  if (named === undefined || texts.some((text) => text?.includes(named))) return [];
  return [`none of its test files has a test named \`${named}\` (any more)`];
}

/** The text of the mutant's file with the mutant in it. */
export function mutate({ from, to }: Mutant, text: string): string {
  const start = text.indexOf(from);
  return text.slice(0, start) + to + text.slice(start + from.length);
}

/** For lines of a report. */
export function nameOf({ file, harm }: Mutant): string {
  return `${file}: ${harm}`;
}

export type Choice = {
  /** In the order in which they are to be tried. */
  mutants: readonly Mutant[];
  /** So many of the first were chosen because they changed. */
  changedCount: number;
};

/** Beside what changed, where no time is given to fill. */
const sampleSize = 20;

/**
 * All mutants, or those that changed and then a sample of the others. Each part is in an order that depends on `seed`
 * alone: where time runs out, it was not always the same ones that were tried.
 */
export function chooseMutants(
  mutants: readonly Mutant[],
  wanted: {
    /** A part of a file's name, of the harm or of the names of its tests. */
    only?: string | undefined;
    /** Files that changed, and whether a mutant is itself new; null for all mutants. */
    changes: { files: ReadonlySet<string>; isNew: (mutant: Mutant) => boolean } | null;
    /** Of the sample there may be as many as time allows. */
    isTimed: boolean;
    seed: string;
  },
): Choice {
  const { only, changes, isTimed, seed } = wanted;
  const named = only === undefined ? mutants : mutants.filter((mutant) => isAbout(mutant, only));
  if (changes === null) return { mutants: isTimed ? shuffle(named, seed) : named, changedCount: 0 };

  const isChanged = (mutant: Mutant) =>
    [mutant.file, ...mutant.tests].some((file) => changes.files.has(file)) || changes.isNew(mutant);
  const shuffled = shuffle(named, seed);
  const changed = shuffled.filter(isChanged);
  const others = shuffled.filter((mutant) => !isChanged(mutant));
  return {
    mutants: [...changed, ...(isTimed ? others : others.slice(0, sampleSize))],
    changedCount: changed.length,
  };
}

function isAbout({ file, harm, tests, named = '' }: Mutant, word: string): boolean {
  return [file, harm, named, ...tests].some((text) => text.includes(word));
}

function shuffle(mutants: readonly Mutant[], seed: string): readonly Mutant[] {
  const rank = (mutant: Mutant) =>
    createHash('sha256')
      .update(`${seed} ${nameOf(mutant)}`)
      .digest('hex');
  return mutants
    .map((mutant) => ({ mutant, rank: rank(mutant) }))
    .sort((first, second) => (first.rank < second.rank ? -1 : 1))
    .map(({ mutant }) => mutant);
}
