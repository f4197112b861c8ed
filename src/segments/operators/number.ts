import { numberSchema, rangeSchema, readNumber, readRange } from '../reading.ts';
import { comparison, type OperandReader, type ValueType } from './operator.ts';

const withNumber = (operator: '=' | '>' | '>=' | '<' | '<='): OperandReader => ({
  schema: numberSchema,
  read: (reading, operand) => {
    const number = readNumber(reading, operand);
    if (number === null) return null;
    return comparison((value, { bind }) => `${value} ${operator} ${bind(number)}::numeric`);
  },
});

/** Values of SQL type `numeric`, which holds what JSON holds to the last digit. */
export const numberType: ValueType = {
  withValue: {
    eq: withNumber('='),
    gt: withNumber('>'),
    gte: withNumber('>='),
    lt: withNumber('<'),
    lte: withNumber('<='),
    between: {
      schema: rangeSchema(numberSchema),
      read: (reading, operand) => {
        const range = readRange(reading, operand, readNumber, (from, to) => from <= to);
        if (range === null) return null;
        return comparison(
          (value, { bind }) => `${value} between ${bind(range.from)}::numeric and ${bind(range.to)}::numeric`,
        );
      },
    },
  },
  withoutValue: {},
  negations: { neq: 'eq' },
};
