import { comparison, type ValueType } from './operator.ts';

/** Values of SQL type `boolean`. */
export const booleanType: ValueType = {
  withValue: {},
  withoutValue: {
    is_true: comparison((value) => value),
    // Not a negation: a contact without a value is neither.
    is_false: comparison((value) => `not ${value}`),
  },
  negations: {},
};
