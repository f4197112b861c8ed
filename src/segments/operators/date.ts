import { dateBounds } from '../../audience/audience.ts';
import { dateOf } from '../../platform/clock.ts';
import { dateSchema, periodSchema, rangeSchema, readDate, readPeriodMs, readRange } from '../reading.ts';
import { comparison, type ValueType } from './operator.ts';

/** How a date is handed to PostgreSQL, as the lower and as the higher side of what means the same instant. */
type Column = {
  sqlType: 'text' | 'timestamptz';
  lowest: (date: string) => string;
  highest: (date: string) => string;
};

function dateTypeOf({ sqlType, lowest, highest }: Column): ValueType {
  return {
    withValue: {
      before: {
        schema: dateSchema,
        read: (reading, operand) => {
          const date = readDate(reading, operand);
          if (date === null) return null;
          return comparison((value, { bind }) => `${value} < ${bind(lowest(date))}::${sqlType}`);
        },
      },
      after: {
        schema: dateSchema,
        read: (reading, operand) => {
          const date = readDate(reading, operand);
          if (date === null) return null;
          return comparison((value, { bind }) => `${value} > ${bind(highest(date))}::${sqlType}`);
        },
      },
      between: {
        schema: rangeSchema(dateSchema),
        read: (reading, operand) => {
          const range = readRange(reading, operand, readDate, (from, to) => lowest(from) <= highest(to));
          if (range === null) return null;
          const [from, to] = [lowest(range.from), highest(range.to)];
          return comparison(
            (value, { bind }) => `${value} between ${bind(from)}::${sqlType} and ${bind(to)}::${sqlType}`,
          );
        },
      },
      within_last: {
        schema: periodSchema,
        read: (reading, operand) => {
          const periodMs = readPeriodMs(reading, operand);
          if (periodMs === null) return null;
          return {
            compile: (value, { bind, at }) => {
              const start = bind(highest(dateOf(at.getTime() - periodMs).toISOString()));
              const end = bind(highest(at.toISOString()));
              return `${value} > ${start}::${sqlType} and ${value} <= ${end}::${sqlType}`;
            },
            isTimeBound: true,
          };
        },
      },
    },
    withoutValue: {},
    negations: { not_within_last: 'within_last' },
  };
}

/** Values as date-value.ts writes them, as text with collate "C". */
export const dateType = dateTypeOf({
  sqlType: 'text',
  lowest: (date) => dateBounds(date).lowest,
  highest: (date) => dateBounds(date).highest,
});

/** Values of SQL type `timestamptz`: there every instant has one form only. */
export const instantType = dateTypeOf({
  sqlType: 'timestamptz',
  lowest: (date) => dateBounds(date).highest,
  highest: (date) => dateBounds(date).highest,
});
