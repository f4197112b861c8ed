import { type Place, readNumber, readRange, type Reading } from '../reading.ts';
import { comparison, type ValueType } from './operator.ts';

const withNumber = (operator: '=' | '>' | '>=' | '<' | '<=') => (reading: Reading, operand: Place) => {
  const number = readNumber(reading, operand);
  if (number === null) return null;
  return comparison((value, { bind }) => `${value} ${operator} ${bind(number)}::numeric`);
};

/** Values of SQL type `numeric`, which holds what JSON holds to the last digit. */
export const numberType: ValueType = {
  withValue: {
    eq: withNumber('='),
    gt: withNumber('>'),
    gte: withNumber('>='),
    lt: withNumber('<'),
    lte: withNumber('<='),
    between: (reading, operand) => {
      const range = readRange(reading, operand, readNumber, (from, to) => from <= to);
      if (range === null) return null;
      return comparison(
        (value, { bind }) => `${value} between ${bind(range.from)}::numeric and ${bind(range.to)}::numeric`,
      );
    },
  },
  withoutValue: {},
  negations: { neq: 'eq' },
};
