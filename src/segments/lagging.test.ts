/** Since when something of segments has waited, whichever organization's it is. */
import { beforeEach, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { findLaggingSince } from './store.ts';

const at = new Date('2026-11-20T12:00:00Z');
let database: Database;

useTestDatabase({ connectionsMax: 1 }, (opened) => {
  database = opened.database;
});
const run = (text: string, values: readonly unknown[]) => database.rows(unpreparedStatement(text), values);
const ago = (minutes: number) => new Date(at.getTime() - minutes * 60_000);
const idOf = (time: Date) => createIds({ nowMs: () => time.getTime() } as never)();

beforeEach(async () => {
  for (const table of ['contact_changes', 'segments']) await run(`delete from ${table}`, []);
});

/** Organizations in the order of their ids, each with changes made so many minutes ago. */
async function addChanges(...organizations: readonly number[][]): Promise<void> {
  for (const [place, changes] of organizations.entries()) {
    for (const minutes of changes)
      await run(`insert into contact_changes values ($1, $2, array[$2::uuid])`, [
        `00000000-0000-7000-8000-00000000000${place}`,
        idOf(ago(minutes)),
      ]);
  }
}

const addSegment = (computeAt: Date) =>
  run(
    `insert into segments (organization_id, id, conditions, conditions_at, status, compute_at)
     values ($1, $1, '{}', now(), 'computing', $2)`,
    [idOf(at), computeAt],
  );

test('nothing waits', async () => {
  expect(await findLaggingSince(database, at)).toBeNull();
  await addSegment(ago(-1));
  expect(await findLaggingSince(database, at)).toBeNull();
});

test.each([
  { what: 'of the first organization', changes: [[9, 3], [4], [5, 1]], due: null, since: 9 },
  { what: 'of the last one', changes: [[3], [4], [9, 1]], due: null, since: 9 },
  { what: 'a segment', changes: [[3], [4]], due: 9, since: 9 },
  { what: 'a change beside a segment', changes: [[9, 3], [4]], due: 5, since: 9 },
  { what: 'a change beside a segment that is not due', changes: [[3]], due: -30, since: 3 },
])('what has waited longest is $what', async ({ changes, due, since }) => {
  await addChanges(...changes);
  if (due !== null) await addSegment(ago(due));
  expect(await findLaggingSince(database, at)).toEqual(ago(since));
});
