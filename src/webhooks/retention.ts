import { type Clock, dateOf } from '../platform/clock.ts';
import { lowestIdAt } from '../platform/ids.ts';
import type { Database } from '../platform/postgres/database.ts';
import { dropPartitionsBefore } from '../platform/postgres/partitions.ts';
import { forgetDays } from './log-store.ts';

const dayMs = 86_400_000;
/** Whoever was away for a month has missed nothing. */
const keptDays = 30;

/** Drops the days of the log that are over. What was not told to an endpoint by then never is. */
export async function dropOldEvents({
  database,
  clock,
}: {
  database: Database;
  clock: Clock;
}): Promise<void> {
  const before = Math.floor(clock.nowMs() / dayMs - keptDays) * dayMs;
  await dropPartitionsBefore(
    database,
    ['webhook_events', 'webhook_deliveries', 'webhook_attempts'],
    dateOf(before),
  );
  await forgetDays(database, lowestIdAt(before));
}
