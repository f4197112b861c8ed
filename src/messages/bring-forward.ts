import { dateOf, type Clock } from '../platform/clock.ts';
import { type Connection, type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { wakeOnce } from '../platform/queue/wake.ts';
import { deliveryChannel } from './deliver.ts';

/** Clocks of nodes are milliseconds apart: what was accepted later than this was so under a clock that was ahead. */
const aheadMsMax = 60_000;
/** The longest pause before another attempt is seven hours. */
const pauseMsMax = 24 * 60 * 60_000;

/** Rows of one statement: more would keep workers from them for longer. */
const rowsMax = 5_000;

/**
 * Housekeeping: what was accepted or put off while the clock was ahead would wait until that time is there. It is due
 * at once. Reads the queue once, without an index, which none of the other statements would have a use for. Ends
 * since a row that was brought forward is not found again.
 */
export async function bringForward({ database, clock }: { database: Database; clock: Clock }): Promise<void> {
  const nowMs = clock.nowMs();
  const values = [dateOf(nowMs), dateOf(nowMs + aheadMsMax), dateOf(nowMs + pauseMsMax), rowsMax];
  const hasJobs = await bringAllForward(database, jobsForward, values);
  await bringAllForward(database, smsEventsForward, [dateOf(nowMs), dateOf(nowMs + pauseMsMax), rowsMax]);
  if (hasJobs) await wakeOnce(database, deliveryChannel);
}

/** Returns whether there was any. */
async function bringAllForward(
  connection: Connection,
  statement: typeof jobsForward,
  values: readonly unknown[],
): Promise<boolean> {
  let isAny = false;
  for (;;) {
    const { length } = await connection.rows(statement, values);
    isAny ||= length > 0;
    if (length < rowsMax) return isAny;
  }
}

/** Claimed rows are left to their worker, which dates them by the present clock. Competes with claims, and skips them. */
const jobsForward = unpreparedStatement<{ is_forward: boolean }>(
  `with ahead as (
     select organization_id, message_id, ordinal
     from delivery_queue
     where claimed_by is null and set_aside_at is null and (accepted_at > $2 or due_at > $3)
     limit $4
     for update skip locked
   )
   update delivery_queue q
   set due_at = $1, accepted_at = least(q.accepted_at, $1)
   from ahead
   where ${hasKeyOf('q', 'ahead', ['message_id', 'ordinal'])}
   returning true as is_forward`,
);

const smsEventsForward = unpreparedStatement<{ is_forward: boolean }>(
  `update sms_events
   set due_at = $1
   where id in (select id from sms_events where due_at > $2 limit $3 for update skip locked)
   returning true as is_forward`,
);
