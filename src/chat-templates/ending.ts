import { type Clock, now } from '../platform/clock.ts';
import type { Connection, Database } from '../platform/postgres/database.ts';
import { wakeOnce } from '../platform/queue/wake.ts';

/** In one statement. */
const endedMax = 1_000;

/** How that is ended which keeps campaigns waiting until a time. */
export type Ending = {
  /** Ends what is over then, at most `limit` of it, and returns how much it was. */
  end: (connection: Connection, at: Date, limit: number) => Promise<number>;
  /** When the next is over; null where none is known. */
  findNext: (connection: Connection) => Promise<Date | null>;
};

/** Ends what is over, at its time, so that campaigns go on then. Returns when there is more to be ended. */
export async function endOver(
  { database, clock }: { database: Database; clock: Clock },
  { end, findNext }: Ending,
): Promise<Date | null> {
  const at = now(clock);
  const ended = await database.transaction(async (transaction) => {
    const count = await end(transaction, at, endedMax);
    if (count > 0) await wakeOnce(transaction, 'campaigns');
    return count;
  });
  return ended === endedMax ? at : findNext(database);
}
