import fc from 'fast-check';
import { beforeAll, expect, test } from 'vitest';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { type Database, unpreparedStatement } from '../postgres/database.ts';
import { PublicError } from './errors.ts';
import { cursorOf, pageClause, paginationFormats, readPage, toList } from './pagination.ts';

let database: Database;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});
beforeAll(async () => {
  await database.rows(unpreparedStatement('create table things (id uuid primary key)'));
});

function idOf(number: number): string {
  return `00000000-0000-7000-8000-${number.toString(16).padStart(12, '0')}`;
}

async function readThings(query: { limit?: string; after?: string; before?: string }) {
  const page = readPage(query);
  const rows = await database.rows(
    unpreparedStatement<{ id: string }>(
      `select id from things where true ${pageClause(page, 'id', '$1')} limit $2`,
    ),
    [cursorOf(page), page.limit + 1],
  );
  return toList(rows, page, ({ id }) => id);
}

test('every page is what sorting, cutting and counting by hand gives, also for cursors of nothing', async () => {
  const scenario = fc.record({
    numbers: fc.uniqueArray(fc.integer({ min: 0, max: 60 }), { maxLength: 40 }),
    limit: fc.integer({ min: 1, max: 12 }),
    cursor: fc.integer({ min: 0, max: 60 }),
    direction: fc.constantFrom('none', 'after', 'before'),
  });
  await fc.assert(
    fc.asyncProperty(scenario, async ({ numbers, limit, cursor, direction }) => {
      await database.rows(unpreparedStatement('delete from things'));
      await database.rows(unpreparedStatement('insert into things select unnest($1::uuid[])'), [
        numbers.map(idOf),
      ]);
      const newestFirst = [...numbers].sort((a, b) => b - a);
      const candidates =
        direction === 'none'
          ? newestFirst
          : newestFirst.filter((number) => (direction === 'after' ? number < cursor : number > cursor));
      // The page before a cursor is the one that ends at it.
      const expected = direction === 'before' ? candidates.slice(-limit) : candidates.slice(0, limit);

      const query = { limit: `${limit}`, ...(direction !== 'none' && { [direction]: idOf(cursor) }) };
      expect(await readThings(query)).toEqual({
        object: 'list',
        has_more: candidates.length > limit,
        data: expected.map(idOf),
      });
    }),
    { numRuns: 150 },
  );
});

test('walking down page by page and up again meets every item once, in order', async () => {
  await database.rows(unpreparedStatement('delete from things'));
  const ids = Array.from({ length: 23 }, (_, index) => idOf(index));
  await database.rows(unpreparedStatement('insert into things select unnest($1::uuid[])'), [ids]);
  const walk = async (direction: 'after' | 'before', start: Record<string, string>) => {
    const seen: string[][] = [];
    let query = start;
    for (;;) {
      const { data, has_more } = await readThings({ limit: '5', ...query });
      seen.push(data);
      if (!has_more) return seen;
      query = { [direction]: direction === 'after' ? data.at(-1)! : data[0]! };
    }
  };
  const newestFirst = ids.toReversed();
  expect((await walk('after', {})).flat()).toEqual(newestFirst);
  const up = await walk('before', { before: ids[0]! });
  expect(up.toReversed().flat()).toEqual(newestFirst.slice(0, -1));
});

test('without parameters a page has twenty items; both cursors at once are refused', async () => {
  expect(readPage({})).toEqual({ limit: 20, after: null, before: null });
  const both = () => readPage({ after: idOf(1), before: idOf(2) });
  expect(both).toThrow(PublicError);
  expect(both).toThrow('Give either after or before, not both.');
});

test('a page size is a whole number from 1 to 100, written as one', () => {
  const isPageSize = paginationFormats['page-size'].test;
  for (let size = 1; size <= 100; size += 1) expect(isPageSize(`${size}`)).toBe(true);
  for (const text of ['0', '101', '-1', '1.5', '1e1', ' 5', '5 ', '', 'five', '0x5', '٥', '999999']) {
    expect(isPageSize(text), text).toBe(false);
  }
});
