/**
 * Statements that are sent together fail together: the first says why, and PostgreSQL skips the others with 25P02.
 * Which of them the caller saw was chance, and with a full disk some requests were answered 500 instead of 503.
 */
import { expect, test } from 'vitest';
import {
  type Database,
  DatabaseUnavailableError,
  sqlState,
  type Transaction,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import { useTestDatabase } from '../support/test-database.ts';

let database: Database;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});

const skipped = unpreparedStatement('select 1');

function failWith(state: string) {
  return unpreparedStatement(`do $$ begin raise exception 'it fails' using errcode = '${state}'; end $$`);
}

/** The error for a caller that learns of the first statement's failure after the second's. */
function failTogether(state: string): Promise<unknown> {
  const sendBoth = async (transaction: Transaction) => {
    const first = transaction.rows(failWith(state));
    const second = transaction.rows(skipped);
    const late = first.finally(() => second.catch(() => undefined));
    await Promise.all([late, second]);
  };
  return database.transaction(sendBoth).catch((cause: unknown) => cause);
}

test('of statements sent together, the one that failed says why', async () => {
  // disk_full and too_many_connections are the server's trouble, serialization_failure is one for another attempt.
  expect(await failTogether('53100')).toBeInstanceOf(DatabaseUnavailableError);
  expect(await failTogether('53300')).toBeInstanceOf(DatabaseUnavailableError);
  expect(sqlState(await failTogether('40001'))).toBe('40001');
});

test('after a return to a savepoint, the later failure is reported', async () => {
  const outcome = await database
    .transaction(async (transaction) => {
      await transaction.rows(unpreparedStatement('savepoint before'));
      await transaction.rows(failWith('40001')).catch(() => undefined);
      await transaction.rows(unpreparedStatement('rollback to savepoint before'));
      await transaction.rows(failWith('22012')).catch(() => undefined);
      await transaction.rows(skipped);
    })
    .catch((cause: unknown) => cause);
  expect(sqlState(outcome)).toBe('22012');
});
