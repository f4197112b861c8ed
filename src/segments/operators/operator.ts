import type { Schema } from '../../platform/http/openapi.ts';
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
 * Operators that compare a value. Each other file here has the operators of one type; this one has what they share: the
 * test for a value, and negation. Each type defines positive operators only. A negative operator is the negation of a
 * positive one, and so matches contacts without a value too.
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

/** What an operator takes as its `value`: read, and described. That the two agree is tested. */
export type OperandReader = {
  schema: Schema;
  read: (reading: Reading, operand: Place) => Comparison | null;
};

/** The operators of one type of value. */
export type ValueType = {
  withValue: Readonly<Record<string, OperandReader>>;
  withoutValue: Readonly<Record<string, Comparison>>;
  /** For each negative operator, the positive one that it negates. */
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

/** Operators that take the same `value`, or none where `operand` is null. */
export type OperatorGroup = { operators: string[]; operand: Schema | null };

/** All operators of a value that is of one of these types, in the order in which a person is told them. */
export function groupOperators(types: readonly ValueType[]): OperatorGroup[] {
  const operands = new Map<string, Map<string, Schema | null>>();
  for (const type of types) {
    for (const operator of operatorsOf(type)) {
      const positive = type.negations[operator] ?? operator;
      const operand = type.withValue[positive]?.schema ?? null;
      const ofOperator = operands.get(operator) ?? new Map<string, Schema | null>();
      operands.set(operator, ofOperator.set(JSON.stringify(operand), operand));
    }
  }
  const groups = new Map<string, OperatorGroup>();
  for (const [operator, alternatives] of operands) {
    const key = [...alternatives.keys()].join();
    const given = [...alternatives.values()].filter((operand) => operand !== null);
    const operand = given.length > 1 ? { anyOf: given } : (given[0] ?? null);
    const group = groups.get(key) ?? { operators: [], operand };
    group.operators.push(operator);
    groups.set(key, group);
  }
  return [...groups.values()];
}

/** The fields of a condition that `readComparison` reads, for one group of operators. */
export function comparisonFields({ operators, operand }: OperatorGroup): Record<string, Schema> {
  return {
    operator: { type: 'string', enum: operators },
    ...(operand !== null && { value: operand }),
  };
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
  const operandReader = type.withValue[operator];
  if (operandReader === undefined) {
    refuseOtherMembers(reading, members, [...otherNames, 'operator']);
    return type.withoutValue[operator] ?? isSet;
  }
  refuseOtherMembers(reading, members, [...otherNames, 'operator', 'value']);
  const operand = takeMember(reading, members, 'value');
  return operand === null ? null : operandReader.read(reading, operand);
}
