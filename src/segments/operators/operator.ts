import { type Predicate, toPredicate } from '../../platform/postgres/predicate.ts';
import type { Compiler } from '../leaf.ts';
import {
  type Members,
  type Place,
  type Reading,
  readOneOf,
  refuseOtherMembers,
  takeMember,
} from '../reading.ts';

/**
 * What a value is compared by. A file here holds the operators of one type; this one what they have in common:
 * whether there is a value at all, and negation. Only what holds is written down for each type. A negative operator
 * is the same with the answer turned round, and so matches contacts without a value too.
 */

/** A comparison that was read. */
export type Comparison = {
  /** `value` is SQL; the result is a condition that may be null where the value is null. */
  compile: (value: string, compiler: Compiler) => string;
  /** Its answer changes as time passes. */
  isTimeBound: boolean;
};

/** One whose answer is never null: a condition of its own. */
export type ReadComparison = Omit<Comparison, 'compile'> & {
  compile: (value: string, compiler: Compiler) => Predicate;
};

/** The operators of one type of value. */
export type ValueType = {
  withValue: Readonly<Record<string, (reading: Reading, operand: Place) => Comparison | null>>;
  withoutValue: Readonly<Record<string, Comparison>>;
  /** By the negative operator, the one whose answer it turns round. */
  negations: Readonly<Record<string, string>>;
};

/** For comparisons that only the value decides. */
export function comparison(compile: Comparison['compile']): Comparison {
  return { compile, isTimeBound: false };
}

const isSet = comparison((value) => `${value} is not null`);

/** For every type of value. */
const commonNegations: Readonly<Record<string, string>> = { is_not_set: 'is_set' };

/** In the order in which a person is told them. */
export function operatorsOf(type: ValueType): string[] {
  const negatives = new Map(
    Object.entries({ ...type.negations, ...commonNegations }).map(([negative, positive]) => [
      positive,
      negative,
    ]),
  );
  return [...Object.keys(type.withValue), ...Object.keys(type.withoutValue), 'is_set'].flatMap((operator) => {
    const negative = negatives.get(operator);
    return negative === undefined ? [operator] : [operator, negative];
  });
}

/**
 * Reads `operator` and `value` of a condition, and refuses every other field that is not among `otherNames`.
 */
export function readComparison(
  reading: Reading,
  members: Members,
  type: ValueType,
  otherNames: readonly string[],
): ReadComparison | null {
  const place = takeMember(reading, members, 'operator');
  const operator = place === null ? null : readOneOf(reading, place, operatorsOf(type));
  if (operator === null) {
    refuseOtherMembers(reading, members, [...otherNames, 'operator', 'value']);
    return null;
  }
  const positive = type.negations[operator] ?? commonNegations[operator] ?? operator;
  const positiveComparison = readPositive(reading, members, type, positive, otherNames);
  if (positiveComparison === null) return null;
  const { compile, isTimeBound } = positiveComparison;
  const answer = positive === operator ? 'is true' : 'is not true';
  return {
    compile: (value, compiler) => toPredicate(`(${compile(value, compiler)}) ${answer}`),
    isTimeBound,
  };
}

function readPositive(
  reading: Reading,
  members: Members,
  type: ValueType,
  operator: string,
  otherNames: readonly string[],
): Comparison | null {
  const readOperand = type.withValue[operator];
  if (readOperand === undefined) {
    refuseOtherMembers(reading, members, [...otherNames, 'operator']);
    return type.withoutValue[operator] ?? isSet;
  }
  refuseOtherMembers(reading, members, [...otherNames, 'operator', 'value']);
  const operand = takeMember(reading, members, 'value');
  return operand === null ? null : readOperand(reading, operand);
}
