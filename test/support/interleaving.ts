/** Two things at once, the second in between at each statement of the first in turn: every order that there is. */
import { type Connection, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import type { StatementProxy } from './statement-proxy.ts';

/** More than anything has that is tried here. */
const statementsMax = 100;

/** A session that is seen to wait so often in a row waits for the other one, and not briefly for something else. */
const waitingLooks = 3;

export type Interleaving<First, Second> = {
  /** All statements of `first` go through it. */
  proxy: StatementProxy;
  /** Looks whether `second` waits for a lock; sees the sessions of the same database. */
  onlooker: Connection;
  first: () => Promise<First>;
  second: () => Promise<Second>;
};

/**
 * Holds `first` at its `number`-th statement until `second` is over, or waits for a lock, then lets both come to their
 * end. Returns null for `first` that has fewer statements: then `second` came after it.
 */
async function meetAt<First, Second>(
  number: number,
  { proxy, onlooker, first, second }: Interleaving<First, Second>,
): Promise<{ results: [First, Second]; isLast: boolean }> {
  const stop = proxy.stopAt(number, 'hold_before');
  const one = first();
  await Promise.race([stop.reached, one]);
  let isOver = false;
  const other = second().finally(() => {
    isOver = true;
  });
  try {
    // Ends, because what neither ends nor waits for a lock would be over by the time limit of the test.
    for (let looks = 0; !isOver && looks < waitingLooks;)
      looks = (await isAnybodyWaiting(onlooker)) ? looks + 1 : 0;
  } finally {
    stop.release();
  }
  return { results: await Promise.all([one, other]), isLast: !stop.isReached() };
}

/**
 * `begin` makes what the two meet over, a new one for each statement; `check` looks at what has become of it. Returns
 * how many statements `first` had.
 */
export async function meetAtEachStatement<First, Second>(
  begin: () => Promise<
    Interleaving<First, Second> & { check: (results: [First, Second], number: number) => Promise<void> }
  >,
): Promise<number> {
  for (let number = 1; number <= statementsMax; number += 1) {
    const meeting = await begin();
    const { results, isLast } = await meetAt(number, meeting);
    await meeting.check(results, number);
    if (isLast) return number - 1;
  }
  throw new Error(`not over after ${statementsMax} statements`);
}

async function isAnybodyWaiting(onlooker: Connection): Promise<boolean> {
  const rows = await onlooker.rows(
    unpreparedStatement(
      `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' limit 1`,
    ),
  );
  return rows.length > 0;
}
