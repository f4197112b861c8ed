import type { Database } from '../platform/postgres/database.ts';
import { dropPartitionsBefore } from '../platform/postgres/partitions.ts';
import { type Clock, dateOf } from '../platform/clock.ts';

const dayMs = 86_400_000;

/** For how long a request is shown. It is told wherever the log is described. */
export const keptMs = 7 * dayMs;

/** Drops the days of which nothing is shown any more. */
export async function dropOldRequests({
  database,
  clock,
}: {
  database: Database;
  clock: Clock;
}): Promise<void> {
  await dropPartitionsBefore(database, ['request_log'], dateOf(clock.nowMs() - keptMs));
}
