import { expect, test } from 'vitest';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import type { Database } from './database.ts';
import { defineStatement } from './parameters.ts';

let database: Database;

useTestDatabase({ connectionsMax: 1 }, (opened) => {
  database = opened.database;
});

type Order = { buyer: string; items: readonly { name: string; pieces: number | null }[] };

const listOrdered = defineStatement<Order, { buyer: string; name: string; pieces: number; position: number }>(
  'test_list_ordered',
  ({ value, rows }) => {
    const buyer = value((order) => order.buyer);
    const items = rows((order) => order.items, {
      name: ['text', ({ name }) => name],
      pieces: ['integer', ({ pieces }) => pieces],
    });
    return `select ${buyer}::text as buyer, item.name, item.pieces, item.position
     from ${items('item', { numbered: 'position' })}
     join ${items('named', { only: ['name'] })} on named.name = item.name
     where ${buyer} <> '' and item.pieces is not null
     order by item.position`;
  },
);

test('each place in the text has the value that is read for it, however often it stands there', async () => {
  const { statement, values } = listOrdered.bind({
    buyer: 'Ann',
    items: [
      { name: 'pear', pieces: 2 },
      { name: 'plum', pieces: null },
      { name: 'fig', pieces: 12 },
    ],
  });
  expect(await database.rows(statement, values)).toEqual([
    { buyer: 'Ann', name: 'pear', pieces: 2, position: 1 },
    { buyer: 'Ann', name: 'fig', pieces: 12, position: 3 },
  ]);
  const none = listOrdered.bind({ buyer: 'Ben', items: [] });
  expect(await database.rows(none.statement, none.values)).toEqual([]);
  expect(none.statement).toBe(statement);
});

test('a column that the rows do not have is refused when the statement is defined', () => {
  const define = () =>
    defineStatement<Order>('test_refused', ({ rows }) => {
      const items = rows((order) => order.items, { name: ['text', ({ name }) => name] });
      return `select from ${items('item', { only: ['price'] })}`;
    });
  expect(define).toThrow('no column price');
});
