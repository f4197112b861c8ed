import { type Bound, type Statement, statement } from './database.ts';

/**
 * Statements whose parameters are made with their text: each place in the text says how its value is read from what the
 * statement is given. Numbers of parameters, and a list of values in the same order, would be an agreement between two
 * places that no compiler knows, and SQL that is part of several statements could have no parameters of its own.
 *
 * The text is made once, when the statement is defined, so that it is prepared once; a call only reads the values.
 */
export type DefinedStatement<Input, Row> = {
  statement: Statement<Row>;
  bind: (input: Input) => Bound<Row>;
};

/** What makes parameters of what is given to a statement. */
export type Parameters<Input> = {
  /** Returns the placeholder of a value. Repeated in the text, it is the same parameter. */
  value: (read: (input: Input) => unknown) => string;
  /** Makes an array of each column, with an item for each of the rows that are read. */
  rows: <Item>(list: (input: Input) => readonly Item[], columns: Columns<Item>) => Rows;
};

/** By name: the type of PostgreSQL, and how the value is read. */
export type Columns<Item> = Readonly<Record<string, readonly [type: string, read: (item: Item) => unknown]>>;

/** SQL for a table of these rows, as in `unnest($1::uuid[], $2::text[]) as given (id, name)`; of all columns, or of some. */
export type Rows = (alias: string, options?: { only?: readonly string[]; numbered?: string }) => string;

export function defineStatement<Input, Row = unknown>(
  name: string,
  write: (parameters: Parameters<Input>) => string,
): DefinedStatement<Input, Row> {
  const readers: ((input: Input) => readonly unknown[])[] = [];
  let count = 0;
  const next = () => {
    count += 1;
    return `$${count}`;
  };
  const text = write({
    value: (read) => {
      readers.push((input) => [read(input)]);
      return next();
    },
    rows: (list, columns) => {
      const reads = Object.values(columns).map(([, read]) => read);
      readers.push((input) => {
        const items = list(input);
        return reads.map((read) => items.map(read));
      });
      const arrays = new Map(
        Object.entries(columns).map(([column, [type]]) => [column, `${next()}::${type}[]`]),
      );
      return (alias, { only = [...arrays.keys()], numbered } = {}) =>
        tableOf(alias, { columns: only, arrays, numbered });
    },
  });
  const made = statement<Row>(name, text);
  return {
    statement: made,
    bind: (input) => ({ statement: made, values: readers.flatMap((read) => read(input)) }),
  };
}

function tableOf(
  alias: string,
  of: { columns: readonly string[]; arrays: ReadonlyMap<string, string>; numbered: string | undefined },
): string {
  const arrays = of.columns.map((column) => {
    const array = of.arrays.get(column);
    if (array === undefined) throw new Error(`the rows have no column ${column}`);
    return array;
  });
  const ordinality = of.numbered === undefined ? '' : ' with ordinality';
  const names = [...of.columns, ...(of.numbered === undefined ? [] : [of.numbered])];
  return `unnest(${arrays.join(', ')})${ordinality} as ${alias} (${names.join(', ')})`;
}
