import { expect, test } from 'vitest';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { readServerTimeMs, readServerVersion, serverVersionMin } from './condition.ts';
import { examineTenantWall } from './tenant-wall.ts';
import { type Connection, type Database, unpreparedStatement } from './database.ts';
import { findDurabilityProblems } from './durability.ts';

let database: Database;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});

/** What `work` sees while `change` is in force, which is rolled back afterwards. */
async function changed<Result>(change: string, work: (connection: Connection) => Promise<Result>) {
  let result: Result | undefined;
  await expect(
    database.transaction(async (transaction) => {
      await transaction.rows(unpreparedStatement(change));
      result = await work(transaction);
      throw new Error('roll back');
    }),
  ).rejects.toThrow('roll back');
  return result;
}

test('the server reports a version that is new enough, and the time', async () => {
  const { text, major } = await readServerVersion(database);
  expect(major).toBeGreaterThanOrEqual(serverVersionMin);
  expect(text).toMatch(new RegExp(`^${major}\\.`));
  const [row] = await database.rows(unpreparedStatement<{ at: Date }>('select clock_timestamp() as at'));
  expect((await readServerTimeMs(database)) - row!.at.getTime()).toBeGreaterThanOrEqual(0);
});

test('a commit that may be lost is reported for each of its settings, and nothing is reported where all are safe', async () => {
  const settingsOf = (problems: { setting: string }[]) => problems.map(({ setting }) => setting);
  const before = settingsOf(await findDurabilityProblems(database));
  const withCommit = await changed('set local synchronous_commit = on', findDurabilityProblems);
  const withoutCommit = await changed('set local synchronous_commit = local', findDurabilityProblems);
  const others = before.filter((setting) => setting !== 'synchronous_commit');
  expect(settingsOf(withCommit ?? [])).toEqual(others);
  expect(withoutCommit?.at(-1)).toMatchObject({ setting: 'synchronous_commit', value: 'local' });

  const safe: Connection = { rows: () => Promise.resolve(allOn as never) };
  expect(await findDurabilityProblems(safe)).toEqual([]);
  const withoutFsync: Connection = {
    rows: () =>
      Promise.resolve(allOn.map((row) => (row.name === 'fsync' ? { ...row, setting: 'off' } : row)) as never),
  };
  expect(settingsOf(await findDurabilityProblems(withoutFsync))).toEqual(['fsync']);
});

/** The server of the tests is itself not safe, and says so only when it is started. */
const allOn = ['fsync', 'full_page_writes', 'synchronous_commit'].map((name) => ({ name, setting: 'on' }));

test('the wall between organizations stands, unless the role may not read one of its tables', async () => {
  expect(await examineTenantWall(database)).toEqual({ kind: 'standing' });
  expect(
    await changed('revoke select on idempotency_keys, domains from postillion_tenant', examineTenantWall),
  ).toEqual({ kind: 'unreachable', tables: ['domains', 'idempotency_keys'] });
});
