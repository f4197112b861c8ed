import type pg from 'pg';
import { type Connection, type Database, statement, unpreparedStatement } from './database.ts';

/** Locks by name, which hold until their transaction ends. A name says whose lock it is: all of a database share them. */

/** Waits until it is free. */
export async function lockName(transaction: Connection, name: string): Promise<void> {
  await transaction.rows(unpreparedStatement('select pg_advisory_xact_lock(hashtextextended($1, 0))'), [
    name,
  ]);
}

const shareLock = statement('locks_share', 'select pg_advisory_xact_lock_shared(hashtextextended($1, 0))');

/** Waits while another transaction holds it exclusively; any number may share it. */
export async function shareNameLock(transaction: Connection, name: string): Promise<void> {
  await transaction.rows(shareLock, [name]);
}

/** Takes it if it is free, without waiting; returns whether it did. */
export async function tryLockName(transaction: Connection, name: string): Promise<boolean> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ is_locked: boolean }>(
      'select pg_try_advisory_xact_lock(hashtextextended($1, 0)) as is_locked',
    ),
    [name],
  );
  return row?.is_locked === true;
}

/** The same for a connection of its own (`connectAlone`), which holds the lock until it ends. */
export async function tryLockNameAlone(
  database: Pick<Database, 'rowsAlone'>,
  alone: pg.Client,
  name: string,
): Promise<boolean> {
  const [row] = await database.rowsAlone(
    alone,
    unpreparedStatement<{ is_locked: boolean }>(
      'select pg_try_advisory_lock(hashtextextended($1, 0)) as is_locked',
    ),
    [name],
  );
  return row?.is_locked === true;
}

/** Frees what such a connection holds. */
export async function unlockNameAlone(
  database: Pick<Database, 'rowsAlone'>,
  alone: pg.Client,
  name: string,
): Promise<void> {
  await database.rowsAlone(alone, unpreparedStatement('select pg_advisory_unlock(hashtextextended($1, 0))'), [
    name,
  ]);
}
