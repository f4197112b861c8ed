import { expect, test } from 'vitest';
import { allOf, anyOf, negate, type Predicate, toPredicate } from './predicate.ts';

const [a, b] = [toPredicate('a'), toPredicate('b or c')];

test('whatever a predicate is made of, it is one expression', () => {
  expect([a, b]).toEqual(['(a)', '(b or c)']);
  expect(allOf([a, b])).toBe('((a) and (b or c))');
  expect(anyOf([a, b])).toBe('((a) or (b or c))');
  expect(negate(b)).toBe('(not (b or c))');
});

test('all of nothing holds, and any of nothing does not', () => {
  expect([allOf([]), anyOf([])]).toEqual(['(true)', '(false)']);
});

test.each(['a) or (b', '(a', 'a)', "a = 'x", 'a -- b', 'a /* b', "x = ')' or ("])(
  'what would not stay within its parentheses is refused: %s',
  (sql) => {
    expect(() => toPredicate(sql)).toThrow('not an expression of its own');
  },
);

test('what stands in quotation marks opens and closes nothing', () => {
  expect(toPredicate(`a = ')' and "b(" = '--''('`)).toBe(`(a = ')' and "b(" = '--''(')`);
});

test('a string is no predicate', () => {
  // @ts-expect-error -- what has an `or` at its top level would be taken for one expression
  const open: Predicate = 'a or b';
  expect(open).toBe('a or b');
});
