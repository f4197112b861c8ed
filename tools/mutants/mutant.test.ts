import { readFileSync } from 'node:fs';
import path from 'node:path';
import { transform } from 'esbuild';
import { describe, expect, test } from 'vitest';
import { allMutants } from './list.ts';
import { chooseMutants, type Mutant, mutate, nameOf, problemsOf } from './mutant.ts';

const root = path.resolve(import.meta.dirname, '../..');
const files: Readonly<Record<string, string>> = {
  'src/sum.ts': 'export const sum = (a, b) => a + b; // a and b',
  'src/sum.test.ts': "test('adds two numbers', …)",
};
const readText = (file: string) => files[file] ?? null;
const mutant: Mutant = {
  file: 'src/sum.ts',
  from: 'a + b',
  to: 'a - b',
  tests: ['src/sum.test.ts'],
  named: 'adds two',
  harm: 'bills are wrong',
};

describe('the list', () => {
  test('has each mutant’s place exactly once, and the tests that should notice', () => {
    const read = (file: string) => {
      try {
        return readFileSync(path.join(root, file), 'utf8');
      } catch {
        return null;
      }
    };
    expect(problemsOf(allMutants, read)).toEqual([]);
  });

  test('has no mutant that is not even a program', async () => {
    const broken = await Promise.all(
      allMutants.map(async (mutant) => {
        const text = mutate(mutant, readFileSync(path.join(root, mutant.file), 'utf8'));
        return transform(text, { loader: 'ts' }).then(
          () => null,
          () => nameOf(mutant),
        );
      }),
    );
    expect(broken.filter((name) => name !== null)).toEqual([]);
  });
});

describe('a mutant', () => {
  test('is put in at its place', () => {
    expect(mutate(mutant, readText('src/sum.ts')!)).toBe('export const sum = (a, b) => a - b; // a and b');
    expect(mutate({ ...mutant, to: '$&' }, 'a + b')).toBe('$&');
  });

  test.each<[string, Partial<Mutant>]>([
    ['`from` is not in the file (any more)', { from: 'a * b' }],
    ['`from` is not in the file (any more)', { from: '' }],
    ['`from` stands in the file 2 times', { from: 'a, b', file: 'src/twice.ts' }],
    ['`to` is `from`', { to: 'a + b' }],
    ['there is no such file', { file: 'src/gone.ts' }],
    ['there is no src/gone.test.ts', { tests: ['src/gone.test.ts'] }],
    ['no test file is named', { tests: [] }],
    ['none of its test files has a test named `adds three` (any more)', { named: 'adds three' }],
  ])('is refused before anything runs: %s', (problem, more) => {
    const wrong = { ...mutant, ...more };
    const read = (file: string) => (file === 'src/twice.ts' ? '(a, b); (a, b)' : readText(file));
    expect(problemsOf([wrong], read)).toEqual([`${wrong.file}: bills are wrong: ${problem}`]);
  });

  test('is refused if another says the same', () => {
    expect(problemsOf([mutant], readText)).toEqual([]);
    expect(problemsOf([mutant, { ...mutant, to: 'a' }], readText)).toEqual([
      'src/sum.ts: bills are wrong: another mutant says the same',
    ]);
  });
});

describe('chosen', () => {
  const many = Array.from({ length: 100 }, (_, index) => ({
    ...mutant,
    file: `src/${index}.ts`,
    tests: [`src/${index}.test.ts`],
    harm: `harm ${index}`,
  }));
  const everything = { changes: null, isTimed: false, seed: 'one' };
  const since = (...changed: readonly string[]) => ({
    ...everything,
    changes: { files: new Set(changed), isNew: ({ harm }: Mutant) => harm === 'harm 99' },
  });

  test('are all, in the order of the list', () => {
    expect(chooseMutants(many, everything)).toEqual({ mutants: many, changedCount: 0 });
  });

  test('are those about a word', () => {
    expect(chooseMutants(many, { ...everything, only: 'src/7.test' }).mutants).toEqual([many[7]]);
    expect(chooseMutants(many, { ...everything, only: 'harm 12' }).mutants).toEqual([many[12]]);
    expect(chooseMutants(many, { ...everything, only: 'adds two' }).mutants).toHaveLength(100);
  });

  test('are those whose file, tests or entry changed, and then some of the others', () => {
    const { mutants, changedCount } = chooseMutants(many, since('src/3.ts', 'src/5.test.ts', 'README.md'));
    expect(changedCount).toBe(3);
    expect(new Set(mutants.slice(0, 3))).toEqual(new Set([many[3], many[5], many[99]]));
    expect(new Set(mutants).size).toBe(3 + 20);
  });

  test('are as many of the others as time allows', () => {
    const { mutants } = chooseMutants(many, { ...since('src/3.ts'), isTimed: true });
    expect(new Set(mutants)).toEqual(new Set(many));
  });

  test('come in an order that is another for each commit, and the same for one', () => {
    const timed = { ...since(), isTimed: true };
    const names = (seed: string) => chooseMutants(many, { ...timed, seed }).mutants.map(nameOf);
    expect(names('one')).toEqual(names('one'));
    expect(names('one')).not.toEqual(names('two'));
  });
});
