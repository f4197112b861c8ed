import { type Clock, sleep } from '../clock.ts';
import { DatabaseUnavailableError } from './database.ts';

/** As long as a PostgreSQL that was killed takes to come back, and some more. */
const unavailableTriesMax = 30;
const unavailablePauseMs = 500;

/** Does it again while PostgreSQL is away: it must be the same when done twice, for the first time may have counted. */
export async function throughOutages<Result>(clock: Clock, work: () => Promise<Result>): Promise<Result> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await work();
    } catch (cause) {
      if (!(cause instanceof DatabaseUnavailableError) || tries === unavailableTriesMax) throw cause;
      await sleep(clock, unavailablePauseMs);
    }
  }
}
